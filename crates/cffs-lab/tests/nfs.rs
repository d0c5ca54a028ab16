//! A mount exported by NFS, few files and restarts. The long form is part of `make conformance`.

mod common;

use cffs_testenv::{Need, have};
use common::{lab, text};

#[test]
fn handles_of_nfs_clients_outlive_servers_and_mounts() {
    if !have(&[Need::Loop]) || !have(&["ganesha.nfsd", "rpcbind", "mkfs.ext4"].map(Need::Program)) {
        return;
    }
    let short = ["nfs", "--files", "400", "--restarts", "2", "--size", "256"];
    let Some(out) = lab(&[&short[..], &["--fs", "ext4"]].concat()) else { return };
    assert!(out.status.success() && text(&out).contains("every handle good"), "{}", text(&out));
    let Some(out) = lab(&[&short[..], &["--fs", "cffs"]].concat()) else { return };
    assert!(out.status.success() && text(&out).contains("every handle good"), "{}", text(&out));
}
