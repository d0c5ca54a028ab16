//! Programs that run side by side, each with something in mind that takes several operations: a file is saved by writing
//! another one and renaming it, a log grows and is rotated, a tree is built and moved, a file is used after its name
//! has gone. Their operations come interleaved, as they would from several threads.

use crate::model_driver::State;
use crate::ops::{Op, Path, code};
use cffs::{Fallocate, RenameFlags};
use fastrand::Rng;
use std::collections::VecDeque;

/// Programs at the same time.
const PROGRAMS: usize = 4;

struct Program {
    /// Where it works.
    dir: Path,
    /// What it will do next.
    script: VecDeque<Op>,
}

/// The programs of a sequence.
pub(crate) struct Programs(Vec<Program>);

const REPLACE: RenameFlags = RenameFlags { no_replace: false, exchange: false };

fn create(path: &Path) -> Op {
    Op::Create { path: path.clone(), perm: 0o644, uid: 0 }
}

fn fsync(path: &Path) -> Op {
    Op::Fsync { path: path.clone() }
}

fn rename(from: &Path, to: &Path) -> Op {
    Op::Rename { from: from.clone(), to: to.clone(), flags: REPLACE }
}

impl Programs {
    pub(crate) fn new(rng: &mut Rng) -> Programs {
        // Two of them may share a directory.
        let program = |_| {
            let dir = Path::new(format!("/p{}", rng.usize(..PROGRAMS)));
            let script = VecDeque::from([Op::Mkdir { path: dir.clone(), perm: 0o755, uid: 0 }]);
            Program { dir, script }
        };
        Programs((0..PROGRAMS).map(program).collect())
    }

    /// The next operation of one of them.
    pub(crate) fn next(&mut self, rng: &mut Rng, state: &State, tag: &mut u64) -> Op {
        let nth = rng.usize(..PROGRAMS);
        let other = self.0[rng.usize(..PROGRAMS)].dir.clone();
        let program = &mut self.0[nth];
        if program.script.is_empty() {
            program.script.extend(scenario(&program.dir, &other, nth, rng, state, tag));
        }
        program.script.pop_front().unwrap_or(Op::Sync)
    }
}

/// Something to do that takes several operations.
fn scenario(dir: &Path, other: &Path, nth: usize, rng: &mut Rng, state: &State, tag: &mut u64) -> Vec<Op> {
    let mut write = |path: &Path, offset: u64, len: usize| {
        *tag += 1;
        Op::Write { path: path.clone(), offset, len, tag: *tag }
    };
    let name = ["a", "b", "c", "M1"][rng.usize(..4)];
    let file = dir.join(name);
    let len = [1, 50, 700, 4096, 9000, 40_000][rng.usize(..6)];
    let size = |path: &Path| match state.resolve(path) {
        Some(Ok(id)) => state.model.get(id).content().map_or(0, |c| c.size()),
        _ => 0,
    };
    match rng.u8(..11) {
        // Save: the old contents or the new ones, whatever happens.
        0 | 1 => {
            let new = dir.join(&format!("new{nth}"));
            let mut ops = vec![create(&new), write(&new, 0, len)];
            if rng.bool() {
                ops.push(Op::Chmod { path: new.clone(), perm: 0o600 });
            }
            ops.extend([fsync(&new), rename(&new, &file)]);
            if rng.bool() {
                ops.push(fsync(dir));
            }
            ops
        }
        // A log: grows, is synced, is rotated.
        2 | 3 => {
            let log = dir.join("log");
            let mut ops = vec![create(&log)];
            let mut end = size(&log);
            for _ in 0..rng.usize(1..6) {
                let len = rng.usize(1..3000);
                ops.push(write(&log, end, len));
                end += len as u64;
                if rng.bool() {
                    ops.push(Op::Fdatasync { path: log.clone() });
                }
            }
            if rng.u8(..3) == 0 {
                ops.extend([rename(&log, &dir.join("log1")), create(&log), fsync(dir)]);
            }
            ops
        }
        // A tree is made, and moved to another program's place.
        4 => {
            let (top, below) = (dir.join("t"), dir.join("t").join("u"));
            let mut ops = [&top, &below].map(|p| Op::Mkdir { path: p.clone(), perm: 0o755, uid: 0 }).to_vec();
            for i in 0..rng.u32(1..5) {
                let file = if rng.bool() { &top } else { &below }.join(&format!("f{i}"));
                ops.extend([create(&file), write(&file, 0, len)]);
            }
            ops.push(rename(&top, &other.join("t")));
            ops.push(fsync(other));
            ops
        }
        // Everything in a directory goes.
        5 => {
            let mut ops = Vec::new();
            if let Some(Ok(id)) = state.resolve(dir) {
                for (name, entry) in state.model.get(id).entries().into_iter().flatten() {
                    let path = dir.join(&code(name));
                    let is_dir = state.model.get(entry.id).is_dir();
                    ops.push(if is_dir { Op::Rmdir { path } } else { Op::Unlink { path } });
                }
            }
            ops.extend([Op::Rmdir { path: dir.clone() }, Op::Mkdir { path: dir.clone(), perm: 0o755, uid: 0 }]);
            ops
        }
        // A file is used after its name has gone.
        6 => {
            let held = Path::new(format!("@{nth}"));
            let slot = nth;
            let mut ops = vec![create(&file), Op::Open { slot, path: file.clone() }, Op::Unlink { path: file.clone() }];
            ops.extend([write(&held, 0, len), create(&file), write(&file, 0, 100), fsync(&file)]);
            ops.extend([Op::Read { path: held, offset: 0, len }, Op::Close { slot }]);
            ops
        }
        // Two names, and none.
        7 => {
            let (one, two) = (dir.join("one"), other.join("two"));
            let mut ops = vec![create(&one), write(&one, 0, len), Op::Link { from: one.clone(), to: two.clone() }];
            ops.extend([fsync(&two), Op::Unlink { path: one }, rename(&two, &file)]);
            ops
        }
        // A data base: allocated ahead, written in places, synced.
        8 => {
            let db = dir.join("db");
            let what = Fallocate::Allocate { keep_size: rng.bool() };
            let mut ops = vec![create(&db), Op::Fallocate { path: db.clone(), what, offset: 0, len: 65_536 }];
            for _ in 0..rng.usize(1..5) {
                let page = rng.u64(..16) * 4096;
                ops.extend([write(&db, page, 4096), Op::Fdatasync { path: db.clone() }]);
            }
            ops
        }
        // A file gets its name when it is complete, or is given up.
        9 => {
            let (slot, held) = (nth, Path::new(format!("@{nth}")));
            let mut ops = vec![Op::Tmpfile { slot, dir: dir.clone(), perm: 0o644, uid: 0 }, write(&held, 0, len)];
            if rng.bool() {
                ops.push(fsync(&held));
            }
            if rng.u8(..4) > 0 {
                let to = if rng.bool() { file } else { other.join("made") };
                ops.push(Op::Link { from: held.clone(), to: to.clone() });
                ops.push(if rng.bool() { fsync(&to) } else { write(&held, len as u64, 500) });
            }
            ops.push(Op::Close { slot });
            ops
        }
        _ => {
            let copy = other.join("copy");
            let len = size(&file).max(1);
            let mut ops = vec![create(&copy)];
            ops.push(Op::Copy { from: file.clone(), to: copy.clone(), offset: 0, to_offset: 0, len });
            ops.extend([fsync(&copy), Op::Truncate { path: file, size: len / 2 }]);
            ops.push(Op::SetXattr { path: copy, name: "user.from".into(), len: 40, tag: 7 });
            ops
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Bounds, Profile, generate};

    #[test]
    fn programs_get_things_done_beside_each_other() {
        let mut state = State::default();
        let (mut saved, mut at_once) = (0, 0);
        let ops = generate(5, Profile::Programs, 600, Bounds::default());
        for pair in ops.windows(2) {
            let dirs = [&pair[0], &pair[1]].map(|op| op.to_string().split('/').nth(1).map(str::to_owned));
            at_once += u32::from(dirs[0] != dirs[1]);
        }
        for op in crate::ops::expand_all(&ops) {
            let good = state.apply(&op).is_ok();
            saved += u32::from(good && matches!(op, Op::Rename { .. }));
        }
        assert!(saved > 10, "{saved} renames that end what was begun");
        assert!(at_once > 200, "{at_once} of 600 times the next operation is another program's");
        assert!(state.model.get(crate::model::ROOT).entries().is_some_and(|e| e.len() > 1));
    }
}
