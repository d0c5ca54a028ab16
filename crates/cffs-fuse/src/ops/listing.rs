//! Listings of directories.

use super::context::{Ops, Reply};
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::Dirent;
use cffs::{FileType, Ino};

/// Positions in a listing for `.` and `..`, which the engine does not list. Its own positions begin at 64.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;

/// The engine's position for continuing a listing after `offset`.
fn engine_position(offset: u64) -> u64 {
    if offset <= DOT_DOT { 0 } else { offset }
}

impl Ops {
    /// Lists a directory from a position on, until `add` returns that there is no room for another entry.
    pub(crate) fn readdir(
        &self,
        ino: Ino,
        offset: u64,
        with_attr: bool,
        add: &mut dyn FnMut(Dirent<'_>) -> bool,
    ) -> Reply<()> {
        let op = if with_attr { Opcode::ReadDirPlus } else { Opcode::ReadDir };
        self.state.call(op, ino, |fs| {
            let mut dot = |ino, next, name| add(Dirent { name, ino, file_type: FileType::Directory, next, attr: None });
            if offset < DOT && dot(ino, DOT, b".") {
                return Ok(());
            }
            if offset < DOT_DOT && dot(fs.parent(ino)?, DOT_DOT, b"..") {
                return Ok(());
            }
            fs.readdir(ino, engine_position(offset), with_attr, &mut |e| {
                let attr = e.attr.as_ref();
                if with_attr && attr.is_none() {
                    return false;
                }
                !add(Dirent { name: &e.name, ino: e.ino, file_type: e.file_type, next: e.cookie, attr })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_a_listing() {
        assert_eq!([0, 1, 2, 64, 65].map(engine_position), [0, 0, 0, 64, 65]);
    }
}
