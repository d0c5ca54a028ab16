//! Words of our own where the field has one stay out of code and pages.
//!
//! Each was used here once. A term that truly is ours stands in `docs/glossary.md` instead.

use std::path::{Path, PathBuf};

/// Names of items, fields, variables and files: below a folder, the name, and what to say instead.
const NAMES: &[(&str, &[&str], &str)] = &[
    ("", &["untold", "Untold"], "deferred extents"),
    ("", &["Past", "WritePast", "write_past", "written_past"], "direct write"),
    ("", &["Purse", "purse", "Funds", "NameReserve"], "Reservation"),
    ("crates/cffs/src", &["Promise", "Hold", "fund", "spend"], "Reservation: reserve, take, release"),
    ("crates/cffs/src", &["Books", "books"], "space accounting"),
    ("crates/cffs/src", &["settle"], "what is done: flush_deferred, charge_delta, recover_log"),
    ("crates/cffs/src", &["Beside", "Siblings"], "locality hint"),
    (
        "crates/cffs/src/cache",
        &["foreign", "came", "listed", "Own"],
        "unrelated, prefetched, sequential, directory extents",
    ),
    ("", &["fetch_together"], "prefetch_batch"),
    ("", &["Remembered"], "WeakBufRef"),
    ("", &["Pace", "is_fast"], "write latency estimate"),
    ("crates/cffs/src", &["Claims", "claims"], "in-flight ranges, block ownership map"),
    ("crates/cffs-buf", &["kept", "bare"], "free list, decommitted"),
    ("", &["Crew", "crew", "standing_by"], "worker pool, parked"),
    (
        "crates/cffs-fuse/src",
        &["Snapshots", "Answer", "Who", "Passing", "Abilities", "Shared"],
        "stats file, Reply, Credentials, uncached, Capabilities, MountState",
    ),
    ("", &["Rooms"], "free-slot index"),
    ("crates/cffs/src", &["gather", "sweep"], "batch allocation"),
    (
        "crates/cffs/src/space",
        &["Moment", "Strict", "Right", "Wish", "roam", "gaps", "turned_up"],
        "free-space epoch, reservation freeze, allocation class, allocation request, rotor, best fit",
    ),
    ("crates/cffs/src", &["Home", "home"], "in place, InodeLocation"),
    ("", &["write_at_once", "write_names_at_once"], "ordered write"),
    ("crates/cffs/src/journal", &["arm", "still", "Changes"], "begin_critical, quiesce, replay readahead"),
    (
        "crates/cffs/src",
        &["Book", "Ledger", "Account", "distrust"],
        "quota type, dquot, inode charge, mark inconsistent",
    ),
    ("crates/cffs/src", &["moving", "resizing"], "rename lock, grow lock"),
    ("crates/cffs/src", &["Job", "give_back", "through_log"], "writeback unit, abort, write through the journal"),
    ("", &["keep_flowing", "poke"], "start writeback, reclaim space, wake"),
    ("crates/cffs/src/node", &["dead", "listed", "accessed"], "freed, on the dirty list, pending atime"),
    ("crates/cffs/src/cache", &["trusted", "judge"], "checksum verified, verify"),
    ("crates/cffs/src/sums", &["suspend", "Summed", "Tables"], "invalidate, checksum run, pinned tables"),
    ("crates/cffs/src/placement", &["Owner", "learn", "forget"], "directory placement, track, untrack, announce"),
    ("crates/cffs/src", &["LONG", "tight"], "stream threshold, must flush"),
    ("crates/cffs/src", &["Blanker", "scramble", "scrambled"], "redact, obfuscate"),
    (
        "crates/cffs/src/check",
        &["look_around", "Witness", "tops", "doubtful"],
        "survey, old locator, unreachable roots, inconsistent",
    ),
    ("crates/cffs-cli/src", &["leaving", "imaging"], "unmount wait, metadata image"),
    (
        "crates/cffs-sim",
        &["intents", "Astray", "Decay", "lying", "Shelf", "Recipe", "recipe"],
        "scenarios, misdirected write, bit rot, ignores flush, corpus, image spec",
    ),
    (
        "crates/cffs-lab",
        &["Site", "rig", "Rig", "Charged", "Fate", "ledger", "Volatile"],
        "test mount, harness, timed disk, loss pattern, durability oracle, volatile-cache disk",
    ),
    ("crates/cffs-disk", &["Sheet", "Spent", "Priced"], "data sheet, time breakdown, flat-cost disk"),
];

/// Phrases of comments, messages and pages.
const PHRASES: &[(&str, &str)] = &[
    ("untold", "deferred"),
    ("is told of", "the mapping is committed"),
    ("was told of", "the mapping is committed"),
    ("past the cache", "direct write, without a copy in the cache"),
    ("goes home", "is written in place"),
    ("go home", "are written in place"),
    ("written home", "written in place"),
    ("at home", "in place"),
    ("running group", "running transaction"),
    ("what comes together", "batch allocation"),
    ("what comes alone", "isolated allocation"),
    ("lying disk", "disk that ignores flushes"),
    ("borne out", "confirmed"),
    ("held back", "delayed"),
    ("the house", "the layers"),
];

/// Left-hand words that stayed, because the glossary defines them.
const DEFENDED: &[&str] =
    &["group", "embedded inode", "locator table", "co-location", "isolated allocation", "reservation"];

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && name != ".git" {
                files(&entry.path(), out);
            }
        } else if entry.path().extension().is_some_and(|e| e == "rs" || e == "md" || e == "sh") {
            out.push(entry.path());
        }
    }
}

/// The names in code: without comments and texts.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    let outside = code.split('"').step_by(2);
    outside.flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).filter(|w| !w.is_empty())
}

/// What is wrong with the text of a file, by line.
fn wrong(path: &str, text: &str) -> Vec<String> {
    let here: Vec<_> = NAMES.iter().filter(|(below, ..)| path.starts_with(below)).collect();
    let mut out = Vec::new();
    if let Some((_, _, instead)) =
        here.iter().find(|(_, bad, _)| bad.iter().any(|b| path.ends_with(&format!("/{b}.rs"))))
    {
        out.push(format!("{path}: say {instead}"));
    }
    for (n, line) in text.lines().enumerate() {
        let at = format!("{path}:{}", n + 1);
        if path.ends_with(".rs") {
            for name in names(line) {
                let found = here.iter().filter(|(_, bad, _)| bad.contains(&name));
                out.extend(found.map(|(_, _, instead)| format!("{at}: {name}: say {instead}")));
            }
        }
        let lower = line.to_lowercase();
        let found = PHRASES.iter().filter(|(phrase, _)| has_words(&lower, phrase));
        out.extend(found.map(|(phrase, instead)| format!("{at}: {phrase}: say {instead}")));
    }
    out
}

/// Whether a text has a phrase as whole words.
fn has_words(text: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric();
    text.match_indices(phrase)
        .any(|(at, _)| !text[..at].ends_with(is_word) && !text[at + phrase.len()..].starts_with(is_word))
}

#[test]
fn words_of_our_own_are_found() {
    let code = "fn f(purse: Purse) {} // the purse\nlet s = \"purse\";";
    assert_eq!(
        wrong("crates/cffs/src/a.rs", code),
        ["crates/cffs/src/a.rs:1: purse: say Reservation", "crates/cffs/src/a.rs:1: Purse: say Reservation",]
    );
    assert_eq!(wrong("crates/cffs/src/space/books.rs", "").len(), 1);
    assert!(wrong("crates/cffs-lab/src/books.rs", "let home = 1;").is_empty(), "only in the engine");
    assert_eq!(wrong("docs/a.md", "The block goes home.\nShe was told offhand.").len(), 1);
}

#[test]
fn code_and_pages_use_the_words_of_the_field() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut all = Vec::new();
    files(&root, &mut all);
    let mut found = Vec::new();
    for file in all {
        let path = file.strip_prefix(&root).unwrap().to_str().unwrap();
        // The changelog says what had other names; this file lists them.
        if path != "CHANGELOG.md" && path != "crates/cffs-tidy/tests/words.rs" {
            found.extend(wrong(path, &std::fs::read_to_string(&file).unwrap()));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_glossary_defends_the_terms_of_our_own() {
    let glossary = include_str!("../../../docs/glossary.md");
    let missing: Vec<_> = DEFENDED.iter().filter(|t| !glossary.contains(&format!("| **{t}** |"))).collect();
    assert!(missing.is_empty(), "docs/glossary.md lacks {missing:?}");
}
