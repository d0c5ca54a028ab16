//! `cffs quota`: who uses what, and may use how much; of a mount or of an image.

mod project;
mod subject;
mod table;

use crate::image::{EngineResultExt, Image, LogArgs, engine_error, open_read_only, open_read_write};
use crate::size::parse_size;
use crate::text::print_json;
use anyhow::{Context, bail};
use cffs::check::{CheckOptions, Class, check};
use cffs::device::{Device, OpenMode};
use cffs::{Fs, QuotaGrace, QuotaKind, QuotaLimits, QuotaStatus};
use cffs_fuse::control::{Control, Request};
use clap::{Args, Subcommand};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use subject::{Subject, parse_duration, parse_subject};

/// Parses the name of a kind of quota.
pub fn parse_kind(text: &str) -> Result<QuotaKind, String> {
    QuotaKind::from_name(text).ok_or_else(|| format!("'{text}' is no kind of quota: user, group or project"))
}

/// Kinds of quota, separated by commas.
#[derive(Clone, Debug)]
struct Kinds(Vec<QuotaKind>);

fn parse_kinds(text: &str) -> Result<Kinds, String> {
    text.split(',').map(parse_kind).collect::<Result<_, _>>().map(Kinds)
}

/// Show and set quotas of users, groups and projects
///
/// What works on a mount takes any directory in it as well as an image that is not mounted. A SUBJECT is user:NAME,
/// group:NAME or project:NAME, or with a number instead of the name.
#[derive(Args, Debug)]
pub struct QuotaArgs {
    #[command(subcommand)]
    command: QuotaCommand,
}

#[derive(Subcommand, Debug)]
enum QuotaCommand {
    /// Show what everybody uses, and the limits
    Report {
        /// Only quotas of these kinds
        #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = parse_kind)]
        kind: Vec<QuotaKind>,
        /// Only this user, group or project
        #[arg(long = "for", value_name = "SUBJECT", value_parser = parse_subject, conflicts_with = "kind")]
        subject: Option<Subject>,
        /// Print them as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Set limits; those that are not named stay. 0 is no limit
    Set {
        /// Whose
        #[arg(value_parser = parse_subject)]
        subject: Subject,
        /// Space that may be exceeded for the grace period
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        soft: Option<u64>,
        /// Space that is never exceeded
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        hard: Option<u64>,
        /// Number of files and directories that may be exceeded for the grace period
        #[arg(long, value_name = "NUMBER")]
        soft_inodes: Option<u64>,
        /// Number of files and directories that is never exceeded
        #[arg(long, value_name = "NUMBER")]
        hard_inodes: Option<u64>,
        #[command(flatten)]
        at: At,
    },
    /// Show or set how long soft limits may be exceeded
    Grace {
        /// user, group or project
        #[arg(value_parser = parse_kind)]
        kind: QuotaKind,
        /// For space, as in 7d, 12h, 30m or 45s
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        space: Option<i64>,
        /// For the number of files
        #[arg(long, value_name = "TIME", value_parser = parse_duration)]
        inodes: Option<i64>,
        #[command(flatten)]
        at: At,
    },
    /// Give a directory and all in it to a project; what is made there from now on belongs to it too
    Project {
        /// Number or name (/etc/projid) of the project; 0 for none
        #[arg(value_parser = subject::parse_project)]
        project: u32,
        #[command(flatten)]
        log: LogArgs,
        /// Directory of a mount, or of an image
        #[arg(value_name = "DIR|IMAGE:/PATH")]
        path: PathBuf,
    },
    /// Count what everybody has, and compare; the image must not be mounted, nothing is written
    Check {
        #[command(flatten)]
        log: LogArgs,
        image: PathBuf,
    },
    /// Count what everybody has, and correct what is recorded; limits stay
    Repair {
        #[command(flatten)]
        log: LogArgs,
        image: PathBuf,
    },
    /// Begin to keep quotas of these kinds; everything is counted once
    On {
        /// user, group, project, separated by commas
        #[arg(value_parser = parse_kinds)]
        kinds: Kinds,
        #[command(flatten)]
        log: LogArgs,
        image: PathBuf,
    },
    /// Keep quotas of these kinds no longer; limits are remembered
    Off {
        /// user, group, project, separated by commas
        #[arg(value_parser = parse_kinds)]
        kinds: Kinds,
        #[command(flatten)]
        log: LogArgs,
        image: PathBuf,
    },
}

/// Where.
#[derive(Args, Debug)]
struct At {
    #[command(flatten)]
    log: LogArgs,
    /// Directory of a mount (any in it), or image
    #[arg(value_name = "DIR|IMAGE")]
    path: PathBuf,
}

/// A mount to ask, or an image that is opened for it.
enum Quotas {
    Mount(Control),
    Image(Arc<Fs>, PathBuf),
}

impl Quotas {
    fn open(at: &At, change: bool) -> anyhow::Result<Quotas> {
        if at.path.is_dir() {
            return Ok(Quotas::Mount(Control::open(&at.path)?));
        }
        let fs = if change { open_read_write(&at.path, &at.log)? } else { open_read_only(&at.path, &at.log)? };
        Ok(Quotas::Image(fs, at.path.clone()))
    }

    fn kinds(&self) -> anyhow::Result<Vec<QuotaKind>> {
        Ok(match self {
            Quotas::Mount(c) => c.call(&Request::QuotaKinds)?,
            Quotas::Image(fs, _) => fs.quota_kinds(),
        })
    }

    /// The kinds, or why there is nothing to show.
    fn kinds_in_use(&self, path: &Path) -> anyhow::Result<Vec<QuotaKind>> {
        let kinds = self.kinds()?;
        if kinds.is_empty() {
            bail!(
                "{}: keeps no quotas: unmount it and run `cffs quota on user,group,project IMAGE`, or make it with `cffs mkfs --quota`",
                path.display()
            );
        }
        Ok(kinds)
    }

    fn report(&self, kind: QuotaKind, id: Option<u32>) -> anyhow::Result<Vec<QuotaStatus>> {
        Ok(match (self, id) {
            (Quotas::Mount(c), _) => c.call(&Request::QuotaReport { kind, id })?,
            (Quotas::Image(fs, path), Some(id)) => vec![fs.quota(kind, id).about(|| path.to_string_lossy())?],
            (Quotas::Image(fs, path), None) => fs.quota_list(kind).about(|| path.to_string_lossy())?,
        })
    }

    fn set(&self, kind: QuotaKind, id: u32, limits: QuotaLimits) -> anyhow::Result<()> {
        match self {
            Quotas::Mount(c) => drop(c.call::<QuotaStatus>(&Request::QuotaSet { kind, id, limits })?),
            Quotas::Image(fs, path) => drop(fs.set_quota(kind, id, limits).about(|| path.to_string_lossy())?),
        }
        Ok(())
    }

    fn grace(&self, kind: QuotaKind, set: Option<QuotaGrace>) -> anyhow::Result<QuotaGrace> {
        Ok(match self {
            Quotas::Mount(c) => c.call(&Request::QuotaGrace { kind, set })?,
            Quotas::Image(fs, path) => {
                let outcome = set.map_or(Ok(()), |grace| fs.set_quota_grace(kind, grace));
                outcome.and_then(|()| fs.quota_grace(kind)).about(|| path.to_string_lossy())?
            }
        })
    }

    fn close(self) -> anyhow::Result<()> {
        match self {
            Quotas::Mount(_) => Ok(()),
            Quotas::Image(fs, path) => fs.close().about(|| path.to_string_lossy()),
        }
    }
}

/// Runs the subcommand.
pub fn run(args: &QuotaArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    match &args.command {
        QuotaCommand::Report { kind, subject, json, at } => report(kind, *subject, *json, at),
        QuotaCommand::Set { subject, soft, hard, soft_inodes, hard_inodes, at } => {
            let quotas = Quotas::open(at, true)?;
            quotas.kinds_in_use(&at.path)?;
            let old = quotas.report(subject.kind, Some(subject.id))?;
            let mut limits = old.first().map(|q| q.limits).unwrap_or_default();
            let put = |limit: &mut u64, new: &Option<u64>| *limit = new.unwrap_or(*limit);
            put(&mut limits.soft_bytes, soft);
            put(&mut limits.hard_bytes, hard);
            put(&mut limits.soft_inodes, soft_inodes);
            put(&mut limits.hard_inodes, hard_inodes);
            quotas.set(subject.kind, subject.id, limits)?;
            quotas.close()?;
            Ok(0)
        }
        QuotaCommand::Grace { kind, space, inodes, at } => {
            let quotas = Quotas::open(at, space.is_some() || inodes.is_some())?;
            quotas.kinds_in_use(&at.path)?;
            let mut grace = quotas.grace(*kind, None)?;
            if space.is_some() || inodes.is_some() {
                grace = QuotaGrace { bytes: space.unwrap_or(grace.bytes), inodes: inodes.unwrap_or(grace.inodes) };
                grace = quotas.grace(*kind, Some(grace))?;
            }
            let mut out = std::io::stdout().lock();
            writeln!(out, "space   {}", table::duration(grace.bytes))?;
            writeln!(out, "inodes  {}", table::duration(grace.inodes))?;
            quotas.close()?;
            Ok(0)
        }
        QuotaCommand::Project { project, log, path } => project::run(*project, path, log),
        QuotaCommand::Check { log, image } => check_image(image, log),
        QuotaCommand::Repair { log, image } => repair(image, log),
        QuotaCommand::On { kinds, log, image } => switch(image, log, |now| {
            now.extend(&kinds.0);
            now.sort_unstable();
            now.dedup();
        }),
        QuotaCommand::Off { kinds, log, image } => switch(image, log, |now| now.retain(|k| !kinds.0.contains(k))),
    }
}

fn report(kinds: &[QuotaKind], subject: Option<Subject>, as_json: bool, at: &At) -> anyhow::Result<u8> {
    let quotas = Quotas::open(at, false)?;
    let kept = quotas.kinds_in_use(&at.path)?;
    let mut wanted: Vec<QuotaKind> = if kinds.is_empty() { kept.clone() } else { kinds.to_vec() };
    if let Some(subject) = subject {
        wanted = vec![subject.kind];
    }
    if let Some(missing) = wanted.iter().find(|k| !kept.contains(k)) {
        bail!("{}: keeps no {} quotas", at.path.display(), missing.name());
    }
    let mut all = Vec::new();
    let mut refused = None;
    for kind in wanted {
        match quotas.report(kind, subject.map(|s| s.id)) {
            Ok(list) => all.push((kind, list)),
            // Everybody may see something of his own.
            Err(e) if kinds.is_empty() && subject.is_none() => refused = Some(e),
            Err(e) => return Err(e),
        }
    }
    if let Some(e) = refused.filter(|_| all.is_empty()) {
        return Err(e);
    }
    if as_json {
        let list = |q: &[QuotaStatus]| q.iter().map(table::json).collect::<Vec<_>>();
        print_json(&all.iter().map(|(k, q)| (k.name().to_owned(), json!(list(q)))).collect())?;
    } else {
        let mut out = std::io::stdout().lock();
        for (kind, list) in &all {
            table::print(&mut out, *kind, list)?;
        }
        out.flush()?;
    }
    quotas.close()?;
    Ok(0)
}

fn check_image(path: &Path, log: &LogArgs) -> anyhow::Result<u8> {
    let image = Image::open(path, log, OpenMode::READ_ONLY)?;
    if QuotaKind::ALL.iter().all(|k| !image.superblock.has_quota(*k)) {
        bail!("{}: keeps no quotas", path.display());
    }
    let log_dev = image.log_dev.map(|d| d as Arc<dyn Device>);
    let all = CheckOptions::default().max_problems(usize::MAX).data(false).jobs(0);
    let report = check(image.dev, log_dev, &all, &|_, _, _| {}).with_context(|| path.display().to_string())?;
    let (quota, others): (Vec<_>, Vec<_>) =
        report.problems.iter().partition(|p| matches!(p.class, Class::QuotaUsage | Class::QuotaBlock));
    let mut out = std::io::stdout().lock();
    for p in &quota {
        writeln!(out, "{p}")?;
    }
    out.flush()?;
    if !others.is_empty() {
        bail!("{}: {} other problems: run `cffs fsck` first", path.display(), others.len());
    }
    if !quota.is_empty() {
        bail!("{}: {} records are wrong: run `cffs quota repair`", path.display(), quota.len());
    }
    Ok(0)
}

fn repair(path: &Path, log: &LogArgs) -> anyhow::Result<u8> {
    let fs = open_read_write(path, log)?;
    let object = || path.display().to_string();
    let mut out = std::io::stdout().lock();
    for kind in fs.quota_kinds() {
        for wrong in fs.recount_quota(kind).about(object)? {
            writeln!(
                out,
                "{} {}: {} bytes and {} inodes instead of {} and {}",
                kind.name(),
                wrong.id,
                wrong.bytes[1],
                wrong.inodes[1],
                wrong.bytes[0],
                wrong.inodes[0]
            )?;
        }
    }
    fs.close().about(object)?;
    Ok(0)
}

fn switch(path: &Path, log: &LogArgs, change: impl FnOnce(&mut Vec<QuotaKind>)) -> anyhow::Result<u8> {
    let image = Image::open(path, log, OpenMode::READ_WRITE)?;
    let mut kinds: Vec<QuotaKind> = QuotaKind::ALL.into_iter().filter(|k| image.superblock.has_quota(*k)).collect();
    change(&mut kinds);
    let log_dev = image.log_dev.map(|d| d as Arc<dyn Device>);
    Fs::switch_quotas(image.dev, log_dev, &kinds).map_err(|e| engine_error(e, &path.display().to_string()))?;
    Ok(0)
}
