//! The experiments of the papers, run by the engine on simulated disks in virtual time: each has a name, the same figures on
//! every machine, and a result kept as JSON. `report` makes one page of them.

mod ablation;
mod aging;
mod apps;
mod chart;
mod classic;
mod cleaner;
mod cleaner_model;
mod cloned;
mod disks;
mod free_space;
mod generated;
pub mod harness;
mod history;
mod kept_up;
pub mod kernel_peers;
mod keys;
mod large;
mod large_files;
mod libraries;
mod log_aging;
mod log_compression;
mod log_devices;
mod lower_bound;
mod members;
mod opening;
mod orders;
mod outcome;
mod page;
mod placement;
mod questions;
mod real_grouping;
mod real_programs;
mod results;
mod runner;
mod scale;
mod scattered;
mod service;
mod sizes;
mod small;
mod source;
mod tpcb;
mod verdicts;
pub mod volume;
mod volumes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use outcome::Outcome;
pub use runner::{RunArgs, run_named};

/// An experiment that can be run.
struct Experiment {
    name: &'static str,
    title: &'static str,
    /// Runs it; `scale` divides the numbers of files, for a quick look.
    run: fn(scale: u64) -> Result<Outcome>,
    /// Programs, the kernel or a real disk have a part in it: it runs alone, and its figures differ between runs.
    real_time: bool,
}

impl Experiment {
    const fn of(name: &'static str, title: &'static str, run: fn(u64) -> Result<Outcome>) -> Experiment {
        Experiment { name, title, run, real_time: false }
    }
}

const EXPERIMENTS: [Experiment; 36] = [
    Experiment::of("disks", "The simulated disks against their data sheets", disks::sheets),
    Experiment::of("ganger97-fig2", "Ganger and Kaashoek 1997, figure 2: service time by request size", |_| {
        service::figure2()
    }),
    Experiment::of("ganger97-fig5", "Ganger and Kaashoek 1997, figure 5: small files, synchronous metadata", |scale| {
        small::figure5(10_000 / scale)
    }),
    Experiment::of("ganger97-fig6", "Ganger and Kaashoek 1997, figure 6: small files, delayed metadata", |scale| {
        small::figure6(10_000 / scale)
    }),
    Experiment::of("ganger97-fig7", "Ganger and Kaashoek 1997, figure 7: small files after aging", aging::figure7),
    Experiment::of(
        "regroup-fig7",
        "Figure 7's aging, with a regroup after it and with maintenance during it",
        kept_up::figure7,
    ),
    Experiment::of("ganger97-fig8", "Ganger and Kaashoek 1997, figure 8: a large file", |_| large::figure8()),
    Experiment::of("ganger97-fig9", "Ganger and Kaashoek 1997, figure 9: what developers do", |scale| {
        apps::figure9(1000 / scale)
    }),
    Experiment::of("sapuntzakis98-table4.1", "Sapuntzakis 1998, table 4.1: a large file", |_| large::table41()),
    Experiment::of("sapuntzakis98-table4.2", "Sapuntzakis 1998, table 4.2: small files", |scale| {
        small::table42(1000 / scale, large::thesis_read()?)
    }),
    Experiment::of("sapuntzakis98-table4.3", "Sapuntzakis 1998, table 4.3: checkout, compile, search", apps::table43),
    Experiment::of(
        "seltzer95-fig1-3",
        "Seltzer et al. 1995, figures 1 to 3: bandwidth by file size, also on the log",
        sizes::figures,
    ),
    Experiment::of(
        "seltzer95-fig4",
        "Seltzer et al. 1995, figure 4: transactions (TPC-B), in place and on the log",
        tpcb::figure4,
    ),
    Experiment::of("cleaner-oracle", "The cleaner of the log disk against what a cleaner has to copy", cleaner::oracle),
    Experiment::of(
        "log-orders",
        "Ganger and Kaashoek 1997, section 6: in place and on the log, read by name and as written",
        orders::orders,
    ),
    Experiment::of(
        "log-devices",
        "In place and on the log: random overwrites on shingled tracks and flash, small files that are synced",
        log_devices::devices,
    ),
    Experiment::of("log-aging", "Figure 7's aging in place and on the log, cleaned and regrouped", log_aging::figure7),
    Experiment::of(
        "log-compression",
        "A source tree on a log disk that compresses: its size, and reading it cold",
        log_compression::compression,
    ),
    Experiment::of("mckusick84-table1", "McKusick et al. 1984, table 1: space wasted", classic::table1),
    Experiment::of("mckusick84-table2", "McKusick et al. 1984, table 2: large transfers by block size", |_| {
        classic::table2()
    }),
    Experiment::of(
        "sweeney96-fig2-3",
        "Sweeney et al. 1996, figures 2 and 3: a large file on striped volumes of 3 to 57 disks",
        volumes::sweeney,
    ),
    Experiment::of("volume-speed", "Mirrors and stripes of two disks against one disk", volumes::speed),
    Experiment::of("sweeney96-fig4", "Sweeney et al. 1996, figure 4: lookups in large directories", scale::figure4),
    Experiment::of(
        "sweeney96-files",
        "Sweeney et al. 1996, section 7.1 and extents: large, huge and sparse files",
        scale::files,
    ),
    Experiment::of("sweeney96-recovery", "Sweeney et al. 1996: recovery time", scale::recoveries),
    Experiment::of(
        "layout",
        "Seltzer et al. 1995, figure 5, and Ganger and Kaashoek 1997, section 2.2: how files lie after aging",
        placement::layout,
    ),
    Experiment::of(
        "colocation",
        "Keys, lists and learning: what belongs together beyond the directory",
        keys::colocation,
    ),
    Experiment::of("history", "Aging by a real history: the revisions of a git repository", history::replay),
    Experiment::of(
        "history-large",
        "Aging by the made-up history of a repository with 50,000 files",
        history::replay_large,
    ),
    Experiment::of("large-files", "Large files against the disk itself, fresh and aged", large_files::model),
    Experiment::of(
        "free-space",
        "A large file where free space is scattered, and after it was brought together",
        free_space::together,
    ),
    Experiment::of("ablation", "What each mechanism is worth, and the defaults, on all disks", ablation::ablation),
    Experiment::of(
        "log-ablation",
        "What each mechanism is worth on the log, and the same work in place",
        ablation::on_log,
    ),
    Experiment {
        real_time: true,
        ..Experiment::of("large-files-real", "Large files against a real file, fresh and aged", large_files::real)
    },
    Experiment {
        real_time: true,
        ..Experiment::of(
            "peers",
            "ext4, xfs, btrfs, fuse2fs and cffs on the same simulated disks (root)",
            kernel_peers::peers,
        )
    },
    Experiment {
        real_time: true,
        ..Experiment::of(
            "real-programs",
            "Real programs on a mount, traced, and what their operations cost on simulated disks (root)",
            real_programs::programs,
        )
    },
];

/// Arguments of `cffs-lab report`.
#[derive(clap::Args)]
pub struct ReportArgs {
    /// Where the results are
    #[arg(long, default_value = "target/lab")]
    results: PathBuf,
    /// The page
    #[arg(long, default_value = "target/lab/report.html")]
    output: PathBuf,
    /// Write the verdicts into the section `verdicts` of this page (docs/lab.md)
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Fills a file system to `level` and works on around it, as figure 7 does.
///
/// # Errors
/// Those of the engine.
pub fn age_image(fs: &cffs::Fs, level: f64, operations: u64, seed: u64) -> Result<()> {
    aging::age_as(fs, level, operations, seed)
}

/// The group that `mkfs` would choose if it timed this disk, in bytes.
///
/// # Errors
/// When no disk has this name.
pub fn group_size(disk: &str) -> Result<u32> {
    Ok(disks::probe(disk)?.group_size)
}

/// `cffs-lab list`.
pub fn list() {
    for e in &EXPERIMENTS {
        println!("{:24} {}", e.name, e.title);
    }
}

fn find(name: &str) -> Result<&'static Experiment> {
    match EXPERIMENTS.iter().find(|e| e.name == name) {
        Some(e) => Ok(e),
        None => bail!("no experiment is called {name}; `cffs-lab list` has their names"),
    }
}

/// `cffs-lab report`.
///
/// # Errors
/// When there are no results or the page cannot be written.
pub fn write_report(args: &ReportArgs) -> Result<ExitCode> {
    let mut found = Vec::new();
    for experiment in &EXPERIMENTS {
        if let Some(outcome) = read(&args.results.join(format!("{}.json", experiment.name)))? {
            found.push((experiment.title, outcome));
        } else {
            eprintln!("{}: no result yet (`cffs-lab run {}`)", experiment.name, experiment.name);
        }
    }
    ensure!(!found.is_empty(), "there are no results in {}: `cffs-lab run --all`", args.results.display());
    fs::write(&args.output, page::page(&found)).with_context(|| format!("cannot write {}", args.output.display()))?;
    println!("{}", args.output.display());
    if let Some(file) = &args.record {
        cffs_record::write_section(file, "verdicts", &verdicts::table(&found))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Option<Outcome>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .with_context(|| format!("{} is of another version: `cffs-lab run --all --again`", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_give_the_same_figures() {
        for name in ["ganger97-fig5", "ganger97-fig8", "sapuntzakis98-table4.2", "log-orders"] {
            let run = || (find(name).unwrap().run)(50).unwrap();
            let first = run();
            assert_eq!(first, run(), "{name}");
            assert!(!first.claims.is_empty() && !first.tables.is_empty());
            assert!(first.tables.iter().flat_map(|t| &t.rows).flat_map(|(_, v)| v).all(|v| v.is_finite() && *v > 0.0));
        }
    }

    #[test]
    fn results_make_a_page_and_come_back_as_they_were() {
        let outcome = service::figure2().unwrap();
        let back: Outcome = serde_json::from_slice(&serde_json::to_vec(&outcome).unwrap()).unwrap();
        let html = page::page(&[("Figure 2", outcome.clone())]);
        assert_eq!(html, page::page(&[("Figure 2", back)]));
        assert!(html.contains("<svg") && html.contains("Figure 2") && !html.contains("http"), "self-contained");
        assert_eq!(html.matches("<tr>").count(), html.matches("</tr>").count());
        for claim in &outcome.claims {
            assert!(html.contains(&claim.text), "{}", claim.text);
        }
    }

    #[test]
    fn names_are_known_or_refused() {
        assert!(EXPERIMENTS.iter().all(|e| find(e.name).is_ok()));
        assert!(find("ganger97-fig99").err().unwrap().to_string().contains("cffs-lab list"));
    }
}
