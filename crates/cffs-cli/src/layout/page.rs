//! The page: it needs nothing else, and no network.

use cffs::Piece;
use cffs::layout::{Layout, Placed};
use serde_json::{Value, json};

const PAGE: &str = include_str!("page.html");

fn pieces(of: &[Piece]) -> Value {
    of.iter().map(|p| json!([p.start, p.len])).collect()
}

fn file(f: &Placed) -> Value {
    json!([String::from_utf8_lossy(&f.name), f.size, pieces(&f.pieces)])
}

/// The page about a device of so many bytes.
pub fn page(title: &str, bytes: u64, layout: &Layout) -> String {
    let dirs: Vec<Value> = layout
        .dirs
        .iter()
        .map(|d| json!({"path": d.path, "p": pieces(&d.pieces), "f": d.files.iter().map(file).collect::<Vec<_>>()}))
        .collect();
    // Nothing in a name ends the script, or begins a comment in it.
    let data = json!({"title": title, "bytes": bytes, "dirs": dirs}).to_string().replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    let (before, after) = PAGE.split_once("DATA").unwrap_or((PAGE, ""));
    format!("{}{data}{after}", before.replacen("TITLE", &title, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::layout::Listed;

    #[test]
    fn names_cannot_leave_the_data() {
        let evil = Placed { name: b"</script><script>alert(1)//TITLE DATA".to_vec(), size: 5, pieces: vec![] };
        let dir = Listed { path: "/<!--".into(), files: vec![evil], ..Listed::default() };
        let page = page("a<b", 4096, &Layout { dirs: vec![dir] });
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(page.contains("<title>a&lt;b</title>") && !page.contains("<!--"), "{page}");
        let data = page.split_once("application/json\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["dirs"][0]["f"][0][0], "</script><script>alert(1)//TITLE DATA");
    }
}
