//! Smaller sequences that fail alike, and proptest strategies that use them.

use crate::generate::{Bounds, Profile, generate};
use crate::ops::{Op, Path, RegroupHow};
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Walks through smaller and smaller variants of a sequence: runs of operations left out, halving the length of the
/// runs, then single operations made simpler.
#[derive(Clone, Debug)]
pub struct Shrinker {
    failing: Vec<Op>,
    candidate: Vec<Op>,
    run: usize,
    at: usize,
    simpler: usize,
}

impl Shrinker {
    /// Starts with a sequence that fails.
    pub fn new(ops: Vec<Op>) -> Shrinker {
        Shrinker { candidate: ops.clone(), run: ops.len().div_ceil(2).max(1), at: 0, simpler: 0, failing: ops }
    }

    /// What to try.
    pub fn candidate(&self) -> &[Op] {
        &self.candidate
    }

    /// The smallest sequence known to fail.
    pub fn smallest(&self) -> &[Op] {
        &self.failing
    }

    /// The candidate fails too: go on from it. False when there is nothing more to try.
    pub fn fails(&mut self) -> bool {
        self.failing.clone_from(&self.candidate);
        self.next()
    }

    /// The candidate does not fail: go on from the smallest that does. False when there is nothing more to try.
    pub fn passes(&mut self) -> bool {
        if self.run > 0 {
            self.at += self.run;
        } else {
            self.simpler += 1;
        }
        self.next()
    }

    fn next(&mut self) -> bool {
        while self.run > 0 {
            if self.at < self.failing.len() {
                let end = (self.at + self.run).min(self.failing.len());
                self.candidate.clone_from(&self.failing);
                self.candidate.drain(self.at..end);
                return true;
            }
            self.at = 0;
            self.run /= 2;
        }
        while self.at < self.failing.len() {
            let simpler = simpler(&self.failing[self.at]);
            if let Some(op) = simpler.get(self.simpler) {
                self.candidate.clone_from(&self.failing);
                self.candidate[self.at] = op.clone();
                return true;
            }
            self.at += 1;
            self.simpler = 0;
        }
        self.candidate.clone_from(&self.failing);
        false
    }
}

/// Simpler variants of an operation, the simplest first.
fn simpler(op: &Op) -> Vec<Op> {
    let mut out = Vec::new();
    match op {
        Op::Write { path, offset, len, tag } => {
            for (o, l) in [(0, 1), (0, *len), (*offset, 1), (*offset, len / 2), (offset / 2, *len)] {
                if l > 0 {
                    out.push(Op::Write { path: path.clone(), offset: o, len: l, tag: *tag });
                }
            }
        }
        Op::Truncate { path, size } => {
            out.extend([0, size / 2].map(|size| Op::Truncate { path: path.clone(), size }));
        }
        Op::CreateMany { dir, first, count, len, tag } => {
            for (c, l) in [(1, *len), (count / 2, *len), (count - 1, *len), (*count, 0)] {
                if c > 0 {
                    let dir = dir.clone();
                    out.push(Op::CreateMany { dir, first: *first, count: c, len: l, tag: *tag });
                }
            }
        }
        Op::UnlinkMany { dir, first, count } if *count > 1 => {
            out.push(Op::UnlinkMany { dir: dir.clone(), first: *first, count: count / 2 });
        }
        Op::Regroup { path, how } => {
            let always = RegroupHow::Always;
            for (p, how) in [(Path::new("/"), always), (Path::new("/"), *how), (path.clone(), always)] {
                out.push(Op::Regroup { path: p, how });
            }
        }
        Op::Symlink { path, len } => out.push(Op::Symlink { path: path.clone(), len: (*len).min(8) }),
        _ => {}
    }
    out.retain(|o| o != op);
    out
}

/// The smallest sequence found by at most `tries` runs for which `fails` holds (it holds for `ops`).
pub fn shrink(ops: Vec<Op>, tries: usize, mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut s = Shrinker::new(ops);
    let mut more = s.next();
    for _ in 0..tries {
        if !more {
            break;
        }
        more = if fails(s.candidate()) { s.fails() } else { s.passes() };
    }
    s.smallest().to_vec()
}

/// Strategy for operation sequences of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Sequences {
    /// What they are mostly made of.
    pub profile: Profile,
    /// Number of operations.
    pub len: usize,
    /// Bounds of single operations.
    pub bounds: Bounds,
}

/// A sequence that proptest can shrink.
#[derive(Clone, Debug)]
pub struct SequenceTree {
    shrinker: Shrinker,
    more: bool,
}

impl Strategy for Sequences {
    type Tree = SequenceTree;
    type Value = Vec<Op>;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let seed = proptest::num::u32::ANY.new_tree(runner)?.current();
        let ops = generate(u64::from(seed), self.profile, self.len, self.bounds);
        Ok(SequenceTree { shrinker: Shrinker::new(ops), more: true })
    }
}

impl ValueTree for SequenceTree {
    type Value = Vec<Op>;

    fn current(&self) -> Vec<Op> {
        self.shrinker.candidate().to_vec()
    }

    fn simplify(&mut self) -> bool {
        self.more = self.more && self.shrinker.fails();
        self.more
    }

    fn complicate(&mut self) -> bool {
        if !self.more {
            return false;
        }
        // When nothing is left to try, what remains is the smallest sequence that fails, which proptest asks for again.
        self.more = self.shrinker.passes();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_two_operations_that_matter() {
        let mut ops = generate(3, Profile::Data, 200, Bounds::default());
        let culprits = crate::ops::parse("write /zz 70000 1234 1\nsync\ntruncate /zz 999").unwrap();
        for (i, op) in culprits.into_iter().enumerate() {
            ops.insert(50 + 40 * i, op);
        }
        let fails = |ops: &[Op]| {
            let write = ops
                .iter()
                .position(|o| matches!(o, Op::Write { path, len, .. } if path.to_string() == "/zz" && *len >= 600));
            let cut = ops.iter().position(|o| matches!(o, Op::Truncate { path, .. } if path.to_string() == "/zz"));
            matches!((write, cut), (Some(w), Some(c)) if w < c)
        };
        let smallest = shrink(ops, 2000, fails);
        assert_eq!(crate::ops::show(&smallest), "write /zz 0 617 1\ntruncate /zz 0\n");
    }

    #[test]
    fn proptest_shrinks_sequences() {
        let strategy = Sequences { profile: Profile::Mixed, len: 100, bounds: Bounds::default() };
        let mut runner = TestRunner::deterministic();
        let fails = |ops: &Vec<Op>| ops.iter().filter(|o| matches!(o, Op::Write { .. })).count() >= 3;
        let error = runner.run(&strategy, |ops| {
            proptest::prop_assert!(!fails(&ops));
            Ok(())
        });
        let Err(proptest::test_runner::TestError::Fail(_, ops)) = error else {
            panic!("{error:?}");
        };
        assert!(fails(&ops) && ops.len() == 3, "{ops:?}");
    }
}
