//! The eight questions that the thesis of 1998 leaves open (section 5.3), each answered from the figures of our runs.

use super::outcome::{Outcome, shown};
use super::real_grouping::{ASKED, LIE};
use super::results::Results;

/// A question with what the figures say; `None` where an experiment has not run.
pub struct Answer {
    /// The question.
    pub question: &'static str,
    /// The answer, or the experiment that is missing.
    pub answer: Found,
}

/// An answer, or the experiment that is missing.
type Found = Result<String, &'static str>;

/// Looks an answer's figures up.
type Find = fn(Results<'_>) -> Found;

/// The questions in the thesis's order.
const QUESTIONS: [(&str, Find); 8] = [
    ("Do small files matter?", small_files),
    ("Are small file accesses significantly slower than large file accesses?", speed_of_small_files),
    ("Are small file accesses often grouped?", grouped_accesses),
    ("Do small files exhibit poor grouping behavior under current file systems?", grouping_elsewhere),
    (
        "Are co-location algorithms in C-FFS successful in grouping small files, even under the stress of aging?",
        grouping_after_aging,
    ),
    ("Do the grouping algorithms in C-FFS improve bandwidth on small file accesses?", small_file_bandwidth),
    (
        "Do the co-location and pre-fetching algorithms in C-FFS result in improved application performance?",
        applications,
    ),
    ("Do the grouping algorithms in C-FFS adversely impact large-file performance?", large_files),
];

fn percent(value: f64) -> String {
    format!("{}%", shown(value))
}

/// How the conventional time (or its inverse) compares, in words.
fn compared(ours: f64, other: f64) -> String {
    let change = (1.0 - ours / other) * 100.0;
    if change >= 0.0 { format!("{} less", percent(change)) } else { format!("{} more", percent(-change)) }
}

/// MB/s at which table 4.2 reads files of 4 KB.
fn small_files_read(r: Results<'_>, variant: &str) -> Result<f64, &'static str> {
    r.figure("sapuntzakis98-table4.2", "Throughput", variant, "read").map(|rate| rate * 4096.0 / 1e6)
}

/// All eight. What traces of real programs say is added where they have run.
pub fn answers(results: &[(&str, Outcome)]) -> Vec<Answer> {
    let r = Results(results);
    let answer = |n: usize, find: Find| {
        let traced = traced(r, n).map(|text| format!("Traced programs: {text}."));
        match (find(r), traced) {
            (Ok(text), Ok(traced)) => Ok(format!("{text} {traced}")),
            // What the experiments of the papers say is missing.
            (Err(_), Ok(traced)) => Ok(traced),
            (found, Err(_)) => found,
        }
    };
    QUESTIONS.iter().enumerate().map(|(n, (question, find))| Answer { question, answer: answer(n, *find) }).collect()
}

/// What traces of real programs say to a question.
fn traced(r: Results<'_>, question: usize) -> Found {
    let of = |table: &str, program: &str, column: &str| r.figure("real-programs", table, program, column);
    let each = |programs: &[&str], say: &dyn Fn(&str) -> Found| -> Found {
        Ok(programs.iter().map(|p| say(p)).collect::<Result<Vec<_>, _>>()?.join("; "))
    };
    let readers = ["git status", "grep -r", "tar"];
    let on = |program: &str| format!("{program}, hdd-2026");
    let (does, small, large) = ("What programs do", "Reading small files", "Reading large files");
    match question {
        0 => each(&readers, &|p| {
            let [files, bytes] = [of(does, p, "small, %")?, of(does, p, "bytes of small, %")?].map(percent);
            Ok(format!("of the files that {p} reads {files} have at most 16 KiB, with {bytes} of the bytes"))
        }),
        1 | 5 => each(&readers[1..], &|p| {
            let at = on(p);
            let [ours, theirs] = [of(small, &at, "both")?, of(small, &at, "neither")?].map(shown);
            let [our_large, their_large] = [of(large, &at, "both")?, of(large, &at, "neither")?].map(shown);
            Ok(format!(
                "{p} waits {ours} ms of hdd-2026 for a MB of small files and {our_large} for one of large files, {theirs} and {their_large} \
                 without the techniques"
            ))
        }),
        2 => each(&readers, &|p| {
            Ok(format!("{p} reads {} of its files after a neighbour", percent(of(does, p, "after a neighbour, %")?)))
        }),
        3 => each(&["ext4", "conventional"], &|system| groups(r, system)),
        4 => groups(r, "cffs"),
        6 => each(&["git status", "grep -r", "tar", "cp -r", "rm -r"], &|p| {
            let time = |way| of("Disk time", &on(p), way);
            let [ours, off, neither] = [time("both")?, time("both, no prefetch")?, time("neither")?].map(shown);
            Ok(format!("{p} takes {ours} s of hdd-2026, {off} without prefetching, {neither} without the techniques"))
        }),
        7 => each(&readers[1..], &|p| {
            let [with, without] = [of(large, &on(p), "both")?, of(large, &on(p), "neither")?].map(shown);
            Ok(format!("{p} waits {with} ms for a MB of large files, {without} without the techniques"))
        }),
        _ => Err("real-programs"),
    }
}

/// How the files lie that a program reads one after the other, and what the disk is asked for it.
fn groups(r: Results<'_>, system: &str) -> Found {
    let lie =
        |state: &str, column: &str| r.figure("real-programs", LIE, &format!("git grep, {system}, {state}"), column);
    let [fresh, aged] = ["fresh", "aged"].map(|state| {
        let [behind, near] = [lie(state, "directly behind, %")?, lie(state, "within a group, %")?].map(percent);
        Ok::<_, &'static str>(format!("{behind} directly behind the one before and {near} within 256 KiB of it"))
    });
    let reads = |state: &str| {
        let row = format!("git grep, {system}, {state}");
        r.figure("real-programs", ASKED, &row, "reads for 100 files").map(shown)
    };
    let requests = match (reads("fresh"), reads("aged")) {
        (Ok(fresh), Ok(aged)) => format!("; 100 of them take {fresh} reads of the disk, aged {aged}"),
        // The kernel's file systems have no such trace.
        _ => String::new(),
    };
    Ok(format!(
        "of the small files that git grep reads on {system} {} in a new clone, {} after many revisions{requests}",
        fresh?, aged?
    ))
}

fn small_files(r: Results<'_>) -> Found {
    let files = r.figure("history", "The history", "last revision", "files at most 16 KiB")?;
    let bytes = r.figure("history", "The history", "last revision", "bytes in them")?;
    Ok(format!(
        "Yes, by number: {} of the files of a source repository have at most 16 KiB. They hold {} of its bytes.",
        percent(files),
        percent(bytes)
    ))
}

fn speed_of_small_files(r: Results<'_>) -> Found {
    let large = r.figure("sapuntzakis98-table4.1", "Bandwidth", "both", "read")?;
    let scattered = r.figure("ganger97-fig5", "Throughput", "neither", "read")? * 1024.0 / 1e6;
    let (neither, both) = (small_files_read(r, "neither")?, small_files_read(r, "both")?);
    let large97 = r.figure("ganger97-fig8", "Bandwidth", "neither", "read")?;
    Ok(format!(
        "Where files lie scattered, very much: with the conventional placement of 1997, files of 1 KB are read at {} MB/s, a large one \
         at {}. Where a fresh disk has them side by side, less: 4 KB files at {} MB/s conventionally and {} with both techniques, a large \
         file at {}.",
        shown(scattered),
        shown(large97),
        shown(neither),
        shown(both),
        shown(large)
    ))
}

fn grouped_accesses(r: Results<'_>) -> Found {
    let share = r.figure("history", "The history", "last revision", "changed together with a neighbour")?;
    Ok(format!(
        "Yes: {} of the files that a revision changes have a neighbour in their directory that the same revision changes; and all \
         programs of the comparison (unpack, search, walk, remove) go through whole directories.",
        percent(share)
    ))
}

fn grouping_elsewhere(r: Results<'_>) -> Found {
    let of = |state: &str| {
        r.figure("layout", "Files that begin", &format!("conventional, {state}"), "in one group with a neighbour")
    };
    let (fresh, aged) = (of("fresh")?, of("70%")?);
    let ext4 = r.figure("peers", "How the aged files lie", "ext4, aged to 70%", "alphabetical");
    let more = match ext4 {
        Ok(share) => format!(
            " On ext4, aged the same way, {} of the files follow their neighbour in the alphabet.",
            percent(share)
        ),
        Err(_) => " (ext4 beside it: `cffs-lab run peers`, as root.)".to_string(),
    };
    Ok(format!(
        "After aging, yes: with the conventional placement {} of small files lie in one group with a neighbour on a fresh disk, {} on one \
         aged to 70%.{more}",
        percent(fresh),
        percent(aged)
    ))
}

fn grouping_after_aging(r: Results<'_>) -> Found {
    let of = |state: &str| {
        r.figure("layout", "Files that begin", &format!("cffs, {state}"), "in one group with a neighbour")
    };
    let old = r.figure("layout", "Files that begin", "conventional, 90%", "in one group with a neighbour")?;
    let (good, all) = r.verdicts("ganger97-fig7", "loss")?;
    Ok(format!(
        "In part: {} of small files share a group with a neighbour on a fresh disk, {} at 70%, {} at 90% (conventional placement: {}). Of \
         the targets for speed after aging, {good} of {all} are met.",
        percent(of("fresh")?),
        percent(of("70%")?),
        percent(of("90%")?),
        percent(old)
    ))
}

fn small_file_bandwidth(r: Results<'_>) -> Found {
    let rate = |variant: &str| r.figure("ganger97-fig5", "Throughput", variant, "read");
    let (neither, both) = (rate("neither")?, rate("both")?);
    Ok(format!(
        "Reading files of 1 KB: {} files/s against {} where the conventional placement is scattered ({} times); on a fresh disk with files \
         side by side {} against {} MB/s of 4 KB files.",
        shown(both),
        shown(neither),
        shown(both / neither),
        shown(small_files_read(r, "both")?),
        shown(small_files_read(r, "neither")?)
    ))
}

fn applications(r: Results<'_>) -> Found {
    let time = |table: &str, variant: &str, what: &str| r.figure("sapuntzakis98-table4.3", table, variant, what);
    let mut words = Vec::new();
    for what in ["checkout", "compile", "search"] {
        let (ours, other) = (time("Disk time", "both", what)?, time("Disk time", "neither", what)?);
        words.push(format!("{what} takes {} disk time", compared(ours, other)));
    }
    let off = r.figure("ablation", "How the defaults", "prefetch: off", "all fresh disks")?;
    Ok(format!(
        "On a fresh disk, with synchronous metadata: {}. Without prefetching, reading takes {} of the time with it, over all fresh disks.",
        words.join(", "),
        percent(off)
    ))
}

fn large_files(r: Results<'_>) -> Found {
    let of = |variant: &str, what: &str| r.figure("ganger97-fig8", "Bandwidth", variant, what);
    let ratio = |what: &str| Ok::<_, &'static str>(of("both", what)? / of("neither", what)? * 100.0);
    Ok(format!(
        "No: with both techniques a large file is written at {}, read at {} and overwritten at {} of the bandwidth without them.",
        percent(ratio("write")?),
        percent(ratio("read")?),
        percent(ratio("overwrite")?)
    ))
}

#[cfg(test)]
mod tests {
    use super::super::real_grouping::LIE_COLUMNS;
    use super::*;

    #[test]
    fn an_answer_has_our_figures_or_says_what_is_missing() {
        let mut outcome = Outcome { name: "history".into(), ..Outcome::default() };
        let columns =
            ["files at most 16 KiB", "bytes in them", "changed together with a neighbour"].map(str::to_string);
        outcome.table("The history (%)", "", &columns, vec![("last revision".into(), vec![81.5, 33.0, 64.0])]);
        let results = [("History", outcome)];
        let answers = answers(&results);
        assert_eq!(answers.len(), 8);
        assert!(answers[0].answer.as_ref().is_ok_and(|a| a.contains("81.5%") && a.contains("33.0%")));
        assert_eq!(answers[1].answer, Err("sapuntzakis98-table4.1"));
        assert_eq!(answers[4].answer, Err("layout"));
        assert!(answers[2].answer.as_ref().is_ok_and(|a| a.contains("64.0%")));
    }

    #[test]
    fn how_files_lie_that_programs_read_answers_two_of_them() {
        let mut outcome = Outcome { name: "real-programs".into(), ..Outcome::default() };
        let columns = LIE_COLUMNS.map(str::to_string);
        let row = |name: &str, behind, near| (format!("git grep, {name}"), vec![900.0, behind, near, 1.0]);
        let rows = vec![
            row("cffs, fresh", 91.0, 99.0),
            row("cffs, aged", 51.0, 62.0),
            row("conventional, fresh", 40.0, 50.0),
            row("conventional, aged", 10.0, 12.0),
            row("ext4, fresh", 30.0, 33.0),
            row("ext4, aged", 7.0, 21.0),
        ];
        outcome.table(LIE, "program", &columns, rows);
        let reads = ["reads for 100 files".to_string()];
        let rows = vec![("git grep, cffs, fresh".into(), vec![4.5]), ("git grep, cffs, aged".into(), vec![8.25])];
        outcome.table(ASKED, "program", &reads, rows);
        let results = [("Programs", outcome)];
        let answers = answers(&results);
        let says = |n: usize, parts: &[&str]| {
            let text = answers[n].answer.as_ref().unwrap();
            parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
        };
        says(3, &["on ext4 30.0% directly", "33.0% within", "7.00% directly", "on conventional 40.0%"]);
        says(4, &["on cffs 91.0% directly", "51.0% directly", "62.0% within", "4.50 reads", "aged 8.25"]);
    }
}
