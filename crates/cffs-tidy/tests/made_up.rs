//! What is wrong is found, in source trees that were made up for it.

use cffs_tidy::{Sources, arrows, circles, external_dependencies, locked_packages, upward, wrong_in_page};
use std::path::Path;

fn sources(files: &[(&str, &str)]) -> Sources {
    let read = |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| text.to_string());
    Sources::read(Path::new("lib.rs"), &read).expect("the tree is whole")
}

fn shown(s: &Sources) -> Vec<String> {
    arrows(s, &["cffs_disk"]).iter().map(|a| format!("{} -> {}", a.from.join("::"), a.to.join("::"))).collect()
}

fn top(path: &[String]) -> Option<String> {
    path.first().cloned()
}

#[test]
fn an_arrow_that_leads_upward_is_found() {
    let good =
        [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::Low; fn f(_: Low) {}"), ("b.rs", "pub struct Low;")];
    let bad = [good[0], good[1], ("b.rs", "pub struct Low; fn f() { crate::a::g() }")];
    let layers: [&[&str]; 2] = [&["a"], &["b"]];
    let s = sources(&good);
    assert!(upward(&layers, &arrows(&s, &[]), &top).unwrap().is_empty());
    let s = sources(&bad);
    let all = arrows(&s, &[]);
    let found: Vec<String> = upward(&layers, &all, &top).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(found, ["b.rs: b uses g of a"]);
}

#[test]
fn an_arrow_between_neighbours_is_found_and_so_is_a_module_without_a_layer() {
    let files = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::Low;"), ("b.rs", "pub struct Low;")];
    let s = sources(&files);
    let all = arrows(&s, &[]);
    assert_eq!(upward(&[&["a", "b"]], &all, &top).unwrap().len(), 1);
    assert!(upward(&[&["a"]], &all, &top).unwrap_err().contains("b has no layer"));
}

#[test]
fn a_circle_is_found_also_around_a_corner_and_into_a_nested_module() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use super::c::inner::C; pub struct B;"),
        ("c/mod.rs", "pub mod inner;"),
        ("c/inner.rs", "pub struct C; fn f() -> Option<crate::a::A> { None }"),
    ];
    assert_eq!(circles(&arrows(&sources(&files), &[])), [["a", "b", "c::inner"]]);
    let cut = [files[0], files[1], files[2], files[3], ("c/inner.rs", "pub struct C;")];
    assert!(circles(&arrows(&sources(&cut), &[])).is_empty());
}

#[test]
fn a_parent_that_uses_its_child_and_is_used_by_it_is_a_circle_and_one_that_re_exports_is_not() {
    let child = ("m/child.rs", "use super::Parent; pub struct Child; fn f(_: Parent) {}");
    let facade =
        [("lib.rs", "mod m;"), ("m/mod.rs", "mod child; mod core; pub use child::Child; pub use core::Parent;")];
    let core = ("m/core.rs", "pub struct Parent;");
    let s = sources(&[facade[0], facade[1], core, child]);
    assert_eq!(shown(&s), ["m::child -> m::core"], "the name is followed to the file that defines it");
    let both = ("m/mod.rs", "mod child; pub use child::Child; pub struct Parent { c: Option<Box<Child>> }");
    let s = sources(&[facade[0], both, child]);
    assert_eq!(circles(&arrows(&s, &[])), [["m", "m::child"]]);
}

#[test]
fn names_in_macros_count_and_what_only_tests_see_does_not() {
    let files = [
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod missing;"),
        ("a.rs", "fn f() { println!(\"{}\", [crate::b::low()].len()) }"),
        ("b.rs", "pub fn low() {} #[cfg(test)] mod tests { use crate::a::f; } #[test] fn t() { crate::a::f() }"),
    ];
    assert_eq!(shown(&sources(&files)), ["a -> b"]);
}

#[test]
fn other_crates_are_named_and_the_standard_library_is_not() {
    let files = [("lib.rs", "use std::sync::Arc; use cffs_disk::Disk; fn f(_: Arc<Disk>) { cffs_disk::g() }")];
    let found = arrows(&sources(&files), &["cffs_disk"]);
    assert_eq!(
        found.iter().map(|a| (a.to.join("::"), a.name.as_str())).collect::<Vec<_>>(),
        [("cffs_disk".to_string(), "Disk"), ("cffs_disk".to_string(), "g")]
    );
}

#[test]
fn dependencies_of_every_kind_are_found_and_members_are_none() {
    let low = "[package]\nname = \"low\"\n[build-dependencies]\ncc = \"1\"\n";
    let high = "[package]\nname = \"high\"\n[dependencies]\nlow.workspace = true\nserde = \"1\"\n\
                [dev-dependencies]\nother = { package = \"tar\", version = \"1\" }\n\
                [target.'cfg(shuttle)'.dependencies]\nshuttle = \"0.9\"\n";
    let found = external_dependencies(&[low.to_owned(), high.to_owned()]).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["cc", "serde", "shuttle", "tar"]);
    assert!(found["cc"].contains("low") && found["tar"].contains("high"));
}

#[test]
fn a_page_of_dependencies_that_lacks_one_keeps_one_or_counts_wrong_is_found() {
    let manifest = "[package]\nname = \"cffs\"\n[dependencies]\nserde = \"1\"\ntar = \"0.4\"\n";
    let users = external_dependencies(&[manifest.to_owned()]).unwrap();
    let lock = "[[package]]\nname = \"cffs\"\n[[package]]\nname = \"serde\"\nsource = \"registry\"\n\
                [[package]]\nname = \"tar\"\nsource = \"registry\"\n";
    let packages = locked_packages(lock).unwrap();
    assert_eq!(packages, 2);
    let page = |number: u32, rows: &[&str]| {
        let rows = rows.join("\n");
        format!(
            "`Cargo.lock` has {number} packages.\n\n| crate | used by | why |\n| --- | --- | --- |\n{rows}\n\n| no | row |\n"
        )
    };
    let serde = "| serde | cffs | counters |";
    let tar = "| tar | tests of cffs | archives |";
    let wrong = |number, rows: &[&str]| wrong_in_page(&page(number, rows), &users, packages).join("; ");
    assert_eq!(wrong(2, &[serde, tar]), "");
    assert_eq!(wrong(2, &[serde]), "tar, used by {\"cffs\"}, has no line");
    assert_eq!(
        wrong(2, &[serde, tar, "| ctrlc | cffs | ends |"]),
        "ctrlc is no direct dependency of a member any more"
    );
    assert_eq!(wrong(3, &[serde, tar]), "Cargo.lock has 2 packages that are not ours, and the page says 3");
    assert_eq!(wrong(2, &[serde, "| tar | cffs-sim | x |"]), "tar is used by {\"cffs\"}, not by {\"cffs-sim\"}");
}
