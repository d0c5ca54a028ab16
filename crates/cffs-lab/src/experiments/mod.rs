//! The experiments of the papers, run by the engine on simulated disks in virtual time: each has a name, the same figures on
//! every machine, and a result kept as JSON. `report` makes one page of them.

mod ablation;
mod aging;
mod apps;
mod classic;
mod history;
mod large;
mod model;
mod outcome;
mod placement;
mod questions;
mod report;
mod rig;
mod scale;
mod service;
mod sizes;
mod small;
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use outcome::{Outcome, shown};

/// An experiment that can be run.
struct Experiment {
    name: &'static str,
    title: &'static str,
    /// Runs it; `scale` divides the numbers of files, for a quick look.
    run: fn(scale: u64) -> Result<Outcome>,
}

const EXPERIMENTS: [Experiment; 19] = [
    Experiment {
        name: "ganger97-fig2",
        title: "Ganger and Kaashoek 1997, figure 2: service time by request size",
        run: |_| service::figure2(),
    },
    Experiment {
        name: "ganger97-fig5",
        title: "Ganger and Kaashoek 1997, figure 5: small files, synchronous metadata",
        run: |scale| small::figure5(10_000 / scale),
    },
    Experiment {
        name: "ganger97-fig6",
        title: "Ganger and Kaashoek 1997, figure 6: small files, delayed metadata",
        run: |scale| small::figure6(10_000 / scale),
    },
    Experiment {
        name: "ganger97-fig7",
        title: "Ganger and Kaashoek 1997, figure 7: small files after aging",
        run: aging::figure7,
    },
    Experiment {
        name: "ganger97-fig8",
        title: "Ganger and Kaashoek 1997, figure 8: a large file",
        run: |_| large::figure8(),
    },
    Experiment {
        name: "ganger97-fig9",
        title: "Ganger and Kaashoek 1997, figure 9: what developers do",
        run: |scale| apps::figure9(1000 / scale),
    },
    Experiment {
        name: "sapuntzakis98-table4.1",
        title: "Sapuntzakis 1998, table 4.1: a large file",
        run: |_| large::table41(),
    },
    Experiment {
        name: "sapuntzakis98-table4.2",
        title: "Sapuntzakis 1998, table 4.2: small files",
        run: |scale| small::table42(1000 / scale, large::thesis_read()?),
    },
    Experiment {
        name: "sapuntzakis98-table4.3",
        title: "Sapuntzakis 1998, table 4.3: checkout, compile, search",
        run: apps::table43,
    },
    Experiment {
        name: "seltzer95-fig1-3",
        title: "Seltzer et al. 1995, figures 1 to 3: bandwidth by file size",
        run: sizes::figures,
    },
    Experiment {
        name: "mckusick84-table1",
        title: "McKusick et al. 1984, table 1: space wasted",
        run: classic::table1,
    },
    Experiment {
        name: "mckusick84-table2",
        title: "McKusick et al. 1984, table 2: large transfers by block size",
        run: |_| classic::table2(),
    },
    Experiment {
        name: "sweeney96-fig4",
        title: "Sweeney et al. 1996, figure 4: lookups in large directories",
        run: scale::figure4,
    },
    Experiment {
        name: "sweeney96-files",
        title: "Sweeney et al. 1996, section 7.1 and extents: large, huge and sparse files",
        run: scale::files,
    },
    Experiment { name: "sweeney96-recovery", title: "Sweeney et al. 1996: recovery time", run: scale::recoveries },
    Experiment {
        name: "layout",
        title: "Seltzer et al. 1995, figure 5, and Ganger and Kaashoek 1997, section 2.2: how files lie after aging",
        run: placement::layout,
    },
    Experiment {
        name: "history",
        title: "Aging by a real history: the revisions of a git repository",
        run: history::replay,
    },
    Experiment { name: "ablation", title: "What each mechanism is worth, on all disks", run: ablation::ablation },
    Experiment {
        name: "peers",
        title: "ext4, xfs, btrfs, fuse2fs and cffs on the same simulated disks (root)",
        run: model::peers,
    },
];

/// Arguments of `cffs-lab run`.
#[derive(clap::Args)]
pub struct RunArgs {
    /// Names of experiments
    names: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Those too that have a result
    #[arg(long)]
    again: bool,
    /// A tenth of the files: a look, not a measurement. The result is not kept
    #[arg(long)]
    quick: bool,
    /// Where results are kept
    #[arg(long, default_value = "target/lab")]
    results: PathBuf,
}

/// Arguments of `cffs-lab report`.
#[derive(clap::Args)]
pub struct ReportArgs {
    /// Where the results are
    #[arg(long, default_value = "target/lab")]
    results: PathBuf,
    /// The page
    #[arg(long, default_value = "target/lab/report.html")]
    output: PathBuf,
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

/// `cffs-lab run`. With `--all`, what has a result already is passed over.
///
/// # Errors
/// When a name is unknown or an experiment fails.
pub fn run_named(args: &RunArgs) -> Result<ExitCode> {
    let chosen: Vec<&Experiment> = match args.all {
        true => EXPERIMENTS.iter().collect(),
        false => args.names.iter().map(|name| find(name)).collect::<Result<_>>()?,
    };
    ensure!(!chosen.is_empty(), "name an experiment (`cffs-lab list` has their names), or --all");
    for (n, experiment) in chosen.iter().enumerate() {
        let path = args.results.join(format!("{}.json", experiment.name));
        if args.all && !args.again && !args.quick && path.is_file() {
            eprintln!("[{}/{}] {}: has a result", n + 1, chosen.len(), experiment.name);
            continue;
        }
        eprintln!("[{}/{}] {}", n + 1, chosen.len(), experiment.name);
        let clock = Instant::now();
        let mut outcome =
            (experiment.run)(if args.quick { 10 } else { 1 }).with_context(|| format!("{} failed", experiment.name))?;
        outcome.name = experiment.name.to_string();
        print_outcome(experiment.title, &outcome);
        eprintln!("({:.1} s)", clock.elapsed().as_secs_f64());
        // What could not run here has nothing to keep, and may run another time.
        if !args.quick && !outcome.tables.is_empty() {
            fs::create_dir_all(&args.results).with_context(|| format!("cannot make {}", args.results.display()))?;
            // Under another name first: what is there is whole.
            let part = path.with_extension("part");
            fs::write(&part, serde_json::to_vec_pretty(&outcome)?)
                .and_then(|()| fs::rename(&part, &path))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_outcome(title: &str, outcome: &Outcome) {
    println!("{title}\n");
    for table in &outcome.tables {
        println!("{}", table.title);
        let head: Vec<String> = table.columns[1..].iter().map(|c| format!("{c:>10}")).collect();
        println!("  {:40}{}", table.columns[0], head.join(""));
        for (name, values) in &table.rows {
            let values: Vec<String> = values.iter().map(|v| format!("{:>10}", shown(*v))).collect();
            println!("  {name:40}{}", values.join(""));
        }
        println!();
    }
    println!("  {:74}{:>8}{:>8}{:>8}", "claim", "paper", "ours", "ratio");
    for claim in &outcome.claims {
        println!(
            "  {:74}{:>8}{:>8}{:>8}  {}",
            claim.text,
            shown(claim.paper),
            shown(claim.ours),
            shown(claim.ours / claim.paper),
            if claim.holds() { "borne out" } else { "NOT borne out" }
        );
    }
    for (claim, why) in &outcome.untested {
        println!("  {claim}: not tested: {why}");
    }
    println!();
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
    fs::write(&args.output, report::page(&found)).with_context(|| format!("cannot write {}", args.output.display()))?;
    println!("{}", args.output.display());
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
        for name in ["ganger97-fig5", "ganger97-fig8", "sapuntzakis98-table4.2"] {
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
        let page = report::page(&[("Figure 2", outcome.clone())]);
        assert_eq!(page, report::page(&[("Figure 2", back)]));
        assert!(page.contains("<svg") && page.contains("Figure 2") && !page.contains("http"), "self-contained");
        assert_eq!(page.matches("<tr>").count(), page.matches("</tr>").count());
        for claim in &outcome.claims {
            assert!(page.contains(&claim.text), "{}", claim.text);
        }
    }

    #[test]
    fn names_are_known_or_refused() {
        assert!(EXPERIMENTS.iter().all(|e| find(e.name).is_ok()));
        assert!(find("ganger97-fig99").err().unwrap().to_string().contains("cffs-lab list"));
    }
}
