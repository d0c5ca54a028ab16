//! Packages of the distribution, unpacked on the mount and compared with
//! their archive.

use std::fs;

use anyhow::{Result, ensure};

use super::support::{Args, LIMIT, need, need_root, same};
use crate::conformance::check::missing;
use crate::conformance::job::{Job, command};
use crate::conformance::test_mount::TestMount;

/// Large ones: many small files, large files, many links.
const PACKAGES: [&str; 5] = ["linux-libc-dev", "libicu-dev", "vim-runtime", "git", "perl-base"];

/// `apt-get download`, `dpkg-deb -x`.
pub fn run(_: &Args, job: &Job, mount: &mut TestMount) -> Result<String> {
    need(&["apt-get", "dpkg-deb", "tar"])?;
    need_root("owners are carried over")?;
    let debs = mount.root().join("debs");
    let host = mount.beside("host")?;
    fs::create_dir(&debs)?;
    // As root and without the user _apt, which may not write there.
    let mut download = command("apt-get", ["-qq", "-o", "APT::Sandbox::User=root", "download"]);
    if !job.outcome(download.args(PACKAGES).current_dir(&debs), LIMIT)?.0 {
        return missing("apt-get download has no packages for us (apt-get update?)");
    }
    mount.again()?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&debs)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    ensure!(names.len() == PACKAGES.len(), "{} packages have come", names.len());
    for name in &names {
        let deb = debs.join(name);
        let (there, beside) = (mount.root().join(format!("{name}.d")), host.join(name));
        for target in [&there, &beside] {
            job.run(command("dpkg-deb", ["-x"]).arg(&deb).arg(target), LIMIT)?;
        }
        // tar sets a directory's time before the hard links in it are made, on any file system.
        for target in [&there, &beside] {
            let touch = ["-type", "d", "-exec", "touch", "-d", "@0", "{}", "+"];
            job.run(command("find", [target]).args(touch), LIMIT)?;
        }
        let script = "dpkg-deb --fsys-tarfile \"$1\" | tar -d -f - -C \"$2\"";
        job.run(command("bash", ["-o", "pipefail", "-ec", script, "sh"]).arg(&deb).arg(&there), LIMIT)?;
    }
    mount.again()?;
    for name in &names {
        same(&host.join(name), &mount.root().join(format!("{name}.d")), name)?;
    }
    Ok(format!(
        "{} downloaded, unpacked, compared with the archive and with the same on another file system",
        names.len()
    ))
}
