//! `cffs generate`: man pages and shell completions, from the definitions of the command line.

use anyhow::Context;
use clap::{Args, Subcommand};
use clap_complete::Shell;
use std::fs;
use std::path::{Path, PathBuf};

/// Write man pages or shell completions
#[derive(Args)]
pub struct GenerateArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Write a man page for the program and for each of its commands
    Man {
        /// Directory to write them to
        dir: PathBuf,
    },
    /// Write completions for bash, zsh and fish
    Completions {
        /// Directory to write them to
        dir: PathBuf,
    },
}

/// What pages and completions are made from.
pub struct Definitions {
    /// The whole program.
    pub program: clap::Command,
    /// Names that mkfs(8), fsck(8) and mount(8) call, with what they take.
    pub named: Vec<(&'static str, clap::Command)>,
}

/// Runs the subcommand.
pub fn run(args: &GenerateArgs, definitions: &Definitions) -> anyhow::Result<u8> {
    match &args.what {
        What::Man { dir } => man(dir, definitions)?,
        What::Completions { dir } => completions(dir, definitions)?,
    }
    Ok(0)
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("{}: cannot make the directory", dir.display()))
}

fn page(dir: &Path, command: clap::Command, name: &str, section: &str) -> anyhow::Result<()> {
    let path = dir.join(format!("{name}.{section}"));
    let tables = command.get_after_long_help().map(|help| tables(&help.to_string())).unwrap_or_default();
    let has_commands = command.get_subcommands().any(|c| c.get_name() != "help");
    let has_version = command.get_version().is_some();
    let man = clap_mangen::Man::new(command).title(name.to_uppercase()).section(section);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if has_commands {
        man.render_subcommands_section(&mut text)?;
    }
    text.extend_from_slice(tables.as_bytes());
    if has_version {
        man.render_version_section(&mut text)?;
    }
    fs::write(&path, text).with_context(|| format!("{}: cannot write", path.display()))
}

/// Sections of a man page from the text that help shows last: headings that end with a colon, and below them lines with
/// a term and, after two spaces or more, what it means.
fn tables(help: &str) -> String {
    let escape = |s: &str| s.replace('\\', "\\e").replace('-', "\\-");
    let mut out = String::new();
    for line in help.lines() {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim();
        match (indent, text.split_once("  ")) {
            (_, None) if text.is_empty() => {}
            (0, _) => out += &format!(".SH {}\n", escape(&text.trim_end_matches(':').to_uppercase())),
            (1..=4, Some((term, meaning))) => {
                out += &format!(".TP\n\\fB{}\\fR\n{}\n", escape(term), escape(meaning.trim_start()));
            }
            (1..=4, None) => out += &format!(".TP\n\\fB{}\\fR\n", escape(text)),
            _ => out += &format!("{}\n", escape(text)),
        }
    }
    out
}

fn man(dir: &Path, definitions: &Definitions) -> anyhow::Result<()> {
    make_dir(dir)?;
    let mut program = definitions.program.clone();
    program.build();
    page(dir, program.clone(), "cffs", "1")?;
    for sub in program.get_subcommands().filter(|c| c.get_name() != "help") {
        page(dir, sub.clone(), &format!("cffs-{}", sub.get_name()), "1")?;
    }
    for (name, command) in &definitions.named {
        let mut command = command.clone();
        command.build();
        page(dir, command, name, "8")?;
    }
    Ok(())
}

fn completions(dir: &Path, definitions: &Definitions) -> anyhow::Result<()> {
    make_dir(dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut command = definitions.program.clone();
        clap_complete::generate_to(shell, &mut command, "cffs", dir)
            .with_context(|| format!("{}: cannot write completions for {shell}", dir.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_becomes_sections() {
        let help = "Mount options:\n  ro, rw   Read-only\n  a, b,\n           both\n\nExit codes:\n  0  Well";
        assert_eq!(
            tables(help),
            ".SH MOUNT OPTIONS\n.TP\n\\fBro, rw\\fR\nRead\\-only\n.TP\n\\fBa, b,\\fR\nboth\n.SH EXIT CODES\n.TP\n\\fB0\\fR\nWell\n"
        );
    }
}
