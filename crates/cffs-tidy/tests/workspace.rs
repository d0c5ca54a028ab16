//! The layers of this workspace. ARCHITECTURE.md shows the same order.

use cffs_tidy::{Arrow, Layer, arrows, circles, crate_sources, upward};
use std::path::{Path, PathBuf};

/// Crates, from above. One may use those below it.
const CRATES: &[&Layer] = &[
    &["cffs_cli"],
    &["cffs_fuse"],
    &["cffs_lab", "cffs_sim"],
    &["cffs_tidy", "cffs_record"],
    &["cffs"],
    &["cffs_disk", "cffs_logdisk", "cffs_volume"],
    &["cffs_device"],
    &["cffs_buf", "cffs_shuttle", "cffs_testenv", "cffs_values"],
];

/// Modules of the engine, from above.
const ENGINE: &[&Layer] = &[
    &["handle", "layout"],
    &["fs"],
    &["metadump"],
    &["dump"],
    &["check"],
    &["mkfs", "tune"],
    &["relocate"],
    &["file", "dir"],
    &["node"],
    &["placement"],
    &["colocation", "learning"],
    &["quota"],
    &["inode"],
    &["sums", "extent", "xattr"],
    &["space"],
    &["journal"],
    &["cache"],
    &["trace"],
    &["reservation", "superblocks", "acl"],
    &["error", "stats", "copies"],
    &["format"],
    &["setters", "addr_map"],
];

/// Modules of the log disk, from above.
const LOGDISK: &[&Layer] = &[
    &["stream", "dump"],
    &["disk"],
    &["shared", "rebuild", "mend"],
    &["recount"],
    &["arrange"],
    &["survey"],
    &["snapshots", "stats", "writer", "check", "recovery"],
    &["scrub"],
    &["cleaner"],
    &["evacuate"],
    &["packer", "read", "contents"],
    &["checkpoint"],
    &["space"],
    &["state"],
    &["catalog", "log", "recent", "pending", "patches", "reserved"],
    &["usage"],
    &["record"],
    &["scan", "remains"],
    &["batch", "cache", "root", "mounts"],
    &["layouts"],
    &["tree", "compress"],
    &["around", "patch", "covered"],
    &["kept"],
    &["extent", "options", "copies"],
    &["store"],
    &["codec"],
];

/// Modules of volumes, from above.
const VOLUME: &[&Layer] = &[
    &["volume"],
    &["mirror"],
    &["striped"],
    &["candidate"],
    &["label"],
    &["regions"],
    &["error"],
    &["superblock"],
    &["layout", "buffers", "range_lock"],
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the folder of the crates")
}

/// Name with underscores, and folder.
fn members() -> Vec<(String, PathBuf)> {
    let mut all: Vec<(String, PathBuf)> = std::fs::read_dir(crates())
        .expect("the folder of the crates")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.join("Cargo.toml").is_file())
        .map(|p| (p.file_name().unwrap_or_default().to_string_lossy().replace('-', "_"), p))
        .collect();
    all.sort();
    all
}

fn all_arrows(name: &str, dir: &Path, others: &[&str]) -> Vec<Arrow> {
    let others: Vec<&str> = others.iter().copied().filter(|o| *o != name).collect();
    arrows(&crate_sources(&dir.join("src")).expect("sources"), &others)
}

fn listed(found: &[&Arrow]) -> String {
    found.iter().map(|a| format!("\n  {a}")).collect()
}

#[test]
fn no_crate_uses_one_above_it() {
    let members = members();
    let names: Vec<&str> = members.iter().map(|(n, _)| n.as_str()).collect();
    for (name, dir) in &members {
        let mut found = all_arrows(name, dir, &names);
        found.retain(|a| names.contains(&a.to.first().map_or("", String::as_str)) && a.to.len() == 1);
        found.iter_mut().for_each(|a| a.from = vec![name.clone()]);
        let up = upward(CRATES, &found, &|p| p.first().cloned()).unwrap_or_else(|e| panic!("{e}"));
        assert!(up.is_empty(), "crates that are used from below:{}", listed(&up));
    }
}

#[test]
fn no_module_of_the_engine_uses_one_above_it() {
    let found = all_arrows("cffs", &crates().join("cffs"), &[]);
    let up = upward(ENGINE, &found, &|p| p.first().cloned()).unwrap_or_else(|e| panic!("{e}"));
    assert!(up.is_empty(), "modules that are used from below:{}", listed(&up));
}

#[test]
fn no_module_of_the_log_disk_uses_one_above_it() {
    let found = all_arrows("cffs_logdisk", &crates().join("cffs-logdisk"), &[]);
    let up = upward(LOGDISK, &found, &|p| p.first().cloned()).unwrap_or_else(|e| panic!("{e}"));
    assert!(up.is_empty(), "modules that are used from below:{}", listed(&up));
}

#[test]
fn no_module_of_volumes_uses_one_above_it() {
    let found = all_arrows("cffs_volume", &crates().join("cffs-volume"), &[]);
    let up = upward(VOLUME, &found, &|p| p.first().cloned()).unwrap_or_else(|e| panic!("{e}"));
    assert!(up.is_empty(), "modules that are used from below:{}", listed(&up));
}

#[test]
fn there_is_no_circle_between_files() {
    let mut found = String::new();
    for (name, dir) in members() {
        let all = all_arrows(&name, &dir, &[]);
        for circle in circles(&all) {
            found += &format!("\n{name}: {}", circle.join(", "));
            let inside = |p: &[String]| circle.contains(&if p.is_empty() { "lib".into() } else { p.join("::") });
            let arrows: Vec<&Arrow> = all.iter().filter(|a| inside(&a.from) && inside(&a.to)).collect();
            found += &listed(&arrows);
        }
    }
    assert!(found.is_empty(), "files that use each other:{found}");
}
