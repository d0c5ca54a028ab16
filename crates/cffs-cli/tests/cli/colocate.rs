//! `colocate` and `together`, of images and of mounts.

use crate::mounting::{fuse_works, mount_point, umount};
use crate::tools::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const DIRS: usize = 8;
const FILES: usize = 60;

/// An image with directories `a/d0` and so on, of 60 files each.
fn image_with_files(dir: &Path) -> String {
    let image = make_image(dir, &[]);
    let source = dir.join("source");
    for d in 0..DIRS {
        fs::create_dir_all(source.join(format!("a/d{d}"))).unwrap();
        for f in 0..FILES {
            fs::write(source.join(format!("a/d{d}/f{f}")), vec![d as u8; 2000 + f]).unwrap();
        }
    }
    ok(&["import", source.to_str().unwrap(), &image]);
    image
}

/// The value of the attribute of a file in an image.
fn attribute(path: &str) -> Option<String> {
    let found = json(&ok(&["stat", "--json", path]));
    let value = found["xattrs"].as_array()?.iter().find(|x| x["name"] == "user.cffs.colocate")?;
    let hex = value["value_hex"].as_str()?;
    let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
    Some(String::from_utf8(bytes.collect()).unwrap())
}

/// Names 40 files in all directories.
fn list() -> impl Iterator<Item = String> {
    (0..40).map(|n| format!("a/d{}/f{}", n * 5 % DIRS, n * 7 % FILES))
}

#[test]
fn an_image_tells_the_key_of_a_directory_and_who_names_it() {
    let dir = temp_dir();
    let image = image_with_files(dir.path());
    let deep = format!("{image}:/a/d3");
    assert_eq!(ok(&["colocate", &deep]).trim(), format!("{deep}: directory"));
    let top = format!("{image}:/a");
    assert!(ok(&["colocate", "--by", "label:web", &top]).contains(&format!("label:web, named by {top}")));
    let shown = json(&ok(&["colocate", "--json", &deep]));
    assert_eq!(shown["key"], "label:web");
    assert!(shown["named_by"].as_str().unwrap().contains("above it"), "{shown}");
    ok(&["colocate", "--by", "owner", &deep]);
    assert_eq!(attribute(&deep).as_deref(), Some("owner"));
    assert!(ok(&["colocate", "--inherit", &deep]).contains("label:web"));
    assert_eq!(attribute(&deep), None);
    let before = contents(&image);
    fails(&["colocate", "--by", "size", &top], 2, &["'size' is no key", "owner"]);
    fails(&["colocate", "--by", "label:a/b", &top], 2, &["is no key"]);
    fails(&["colocate", &format!("{image}:/a/d1/f1")], 1, &[":/a/d1/f1: not a directory"]);
    fails(&["colocate", &format!("{image}:/missing")], 1, &[":/missing"]);
    fails(&["colocate", dir.path().to_str().unwrap()], 1, &["not on a mounted cffs"]);
    assert!(contents(&image) == before, "changed");
    ok(&["fsck", "-n", &image]);
}

#[test]
fn files_of_a_list_move_together_with_the_next_regroup() {
    let dir = temp_dir();
    let image = image_with_files(dir.path());
    let names: Vec<String> = list().map(|name| format!("{image}:/{name}")).collect();
    let args: Vec<&str> = ["together"].into_iter().chain(names.iter().map(String::as_str)).collect();
    ok(&args);
    let values: Vec<String> = names.iter().map(|name| attribute(name).unwrap()).collect();
    assert!(values[0].starts_with("list:") && values[0].ends_with(":0") && values[39].ends_with(":39"), "{values:?}");
    let done = json(&ok(&["regroup", "--json", &image]));
    assert!(done["files_moved"].as_u64().unwrap() >= 40, "{done}");
    assert_eq!(json(&ok(&["regroup", "--json", &image]))["bytes_moved"], 0);
    fails(&["together", &names[0], &format!("{image}:/a")], 1, &[":/a: not a regular file"]);
    fails(&["together", &names[0], &format!("{image}:/none")], 1, &[":/none"]);
    fails(&["together", "/nonexistent/file"], 1, &["/nonexistent/file", "no such file"]);
    fails(&["together"], 2, &["required"]);
    fails(&["together", "--from", "/dev/null"], 1, &["the list is empty"]);
    fails(&["together", "--from", "/nonexistent/list"], 1, &["/nonexistent/list"]);
    assert_eq!(attribute(&names[0]).as_ref(), Some(&values[0]), "a list with a wrong name in it changes nothing");
    ok(&["fsck", "-n", &image]);
}

#[test]
fn a_mount_takes_keys_and_lists_from_the_program_and_from_setxattr() {
    if !fuse_works() {
        return;
    }
    let dir = temp_dir();
    let image = image_with_files(dir.path());
    let (path, name) = mount_point(dir.path());
    ok(&["mount", &image, &name]);
    let sub = path.join("a/d2");
    let (top, sub) = (path.join("a").to_str().unwrap().to_owned(), sub.to_str().unwrap().to_owned());
    assert!(ok(&["colocate", "--by", "age", &top]).contains("age, named by"));
    assert!(ok(&["colocate", &sub]).contains(&format!("{sub}: age, named by {top}")));
    // As a program does it.
    let set = |path: &str, value: &[u8]| {
        rustix::fs::setxattr(path, "user.cffs.colocate", value, rustix::fs::XattrFlags::empty())
    };
    set(&sub, b"directory").unwrap();
    assert!(ok(&["colocate", &sub]).contains(&format!("directory, named by {sub}")));
    assert_eq!(set(&sub, b"nonsense"), Err(rustix::io::Errno::INVAL));
    ok(&["colocate", "--inherit", &sub]);
    ok(&["colocate", "--inherit", &sub]);
    assert!(ok(&["colocate", &sub]).contains("age"));

    let names: Vec<String> = list().map(|n| path.join(n).to_str().unwrap().to_owned()).collect();
    let mut child = Command::new(CFFS).args(["together", "--from", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), (names.join("\n") + "\n\n").as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    fails(&["together", &names[0], "/etc/hostname", "/etc/passwd"], 1, &["not in the file system"]);
    fails(&["together", "/etc/passwd"], 1, &["not on a mounted cffs"]);
    let done = json(&ok(&["regroup", "--json", &name]));
    assert!(done["files_moved"].as_u64().unwrap() >= 40, "{done}");
    umount(&name);
    assert!(attribute(&format!("{image}:/{}", list().last().unwrap())).unwrap().ends_with(":39"));
    ok(&["fsck", "-n", &image]);
}
