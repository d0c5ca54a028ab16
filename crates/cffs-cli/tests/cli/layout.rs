//! `layout`, and its page in a browser.

use crate::mounting::{fuse_works, mount_point, umount};
use crate::tools::*;
use std::fs;
use std::path::Path;
use std::process::Command;

const DIRS: usize = 5;
const FILES: usize = 30;

fn image_with_files(dir: &Path) -> String {
    let image = make_image(dir, &[]);
    for d in 0..DIRS {
        let at = dir.join(format!("tree/dir{d}"));
        fs::create_dir_all(&at).unwrap();
        (0..FILES).for_each(|n| fs::write(at.join(format!("file{n}")), vec![d as u8; 4000 + 100 * n]).unwrap());
    }
    // A name that a page could take for its own.
    fs::write(dir.join("tree/dir0/<b>&amp;"), vec![1; 5000]).unwrap();
    ok(&["import", dir.join("tree").to_str().unwrap(), &image]);
    image
}

/// The page as the browser has it when its script has run.
fn in_a_browser(dir: &Path, address: &str) -> String {
    let out = Command::new("timeout")
        .args(["100", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,800"])
        .arg(format!("--user-data-dir={}", dir.join("browser").display()))
        .args(["--virtual-time-budget=3000", "--dump-dom", address])
        .env("HOME", dir)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    stdout(&out)
}

/// The number in an attribute of the map.
fn attribute(dom: &str, name: &str) -> u64 {
    let from = dom.find(&format!("{name}=\"")).unwrap_or_else(|| panic!("no {name}")) + name.len() + 2;
    dom[from..].split('"').next().unwrap().parse().unwrap()
}

#[test]
fn the_page_shows_the_files_of_each_directory_and_can_be_looked_into() {
    let dir = temp_dir();
    let image = image_with_files(dir.path());
    let page = dir.path().join("map.html");
    let said = ok(&["layout", &image, "-o", page.to_str().unwrap()]);
    assert!(said.contains(&format!("{} files in {} directories", DIRS * FILES + 1, DIRS + 1)), "{said}");
    let figures = json(&ok(&["layout", "--json", &image]));
    assert!(figures["score"].as_f64().unwrap() > 90.0, "{figures}");
    fails(&["layout", dir.path().join("nothing").to_str().unwrap()], 1, &["nothing"]);
    if !have(&[Need::Program("chromium")]) {
        return;
    }
    let address = format!("file://{}", page.display());
    let whole = in_a_browser(dir.path(), &address);
    assert!(whole.contains(&format!("{} files in {} directories", DIRS * FILES + 1, DIRS + 1)), "{whole}");
    // The table has all directories; files of one directory were imported together, and lie in few runs.
    let rows: Vec<&str> = whole
        .split("<tr")
        .filter_map(|row| row.split_once("</tr>"))
        .map(|(row, _)| row)
        .filter(|row| row.contains("/dir"))
        .collect();
    assert_eq!(rows.len(), DIRS, "{whole}");
    let runs = |row: &str| row.rsplit("<td>").next().unwrap().split('<').next().unwrap().parse::<u64>().unwrap();
    assert!(rows.iter().all(|row| (1..10).contains(&runs(row))), "{rows:?}");
    let (cells, used) = (attribute(&whole, "data-cells"), attribute(&whole, "data-used"));
    assert!(cells > 1000 && used > 10 && used < cells / 2, "{used} of {cells} cells");
    // Zoomed into what the first megabytes have, cells are smaller; the page describes the directory that is chosen.
    let near = in_a_browser(dir.path(), &format!("{address}#from=0&to=4194304&dir=/dir1"));
    assert!(attribute(&near, "data-cell") < attribute(&whole, "data-cell"), "{near}");
    assert!(near.contains(&format!("/dir1: {FILES} files")) && near.contains("class=\"chosen\""), "{near}");
}

#[test]
fn a_mount_tells_the_same() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = image_with_files(dir.path());
    let before = json(&ok(&["layout", "--json", &image]));
    let (path, name) = mount_point(dir.path());
    ok(&["mount", &image, &name]);
    let _mounted = Mounted(path);
    assert_eq!(json(&ok(&["layout", "--json", &name])), before);
    // What was just written has a place too.
    fs::write(Path::new(&name).join("dir3/more"), vec![7; 50_000]).unwrap();
    let page = dir.path().join("map.html");
    ok(&["layout", &name, "-o", page.to_str().unwrap()]);
    let text = fs::read_to_string(page).unwrap();
    let more = text.split_once("[\"more\",50000,[[").expect("it is in the page").1;
    assert!(more.starts_with(|c: char| c.is_ascii_digit()), "it has a place");
    umount(&name);
}
