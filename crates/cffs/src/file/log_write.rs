//! Small fsyncs through the journal (design decision 8): the data of a small file travels with the metadata that points to
//! it, and is written in place at the next checkpoint, together with its neighbours.

use super::unit::Unit;
use super::writeback::{self, checksums_of};
use super::{FileCtx, collect, mapping};
use crate::cache::{BufRef, DataRun};
use crate::error::Result;
use crate::format::dirblock::BlockEdit;
use crate::node::{Node, NodeState};
use crate::sums::PinnedTables;
use std::sync::Arc;

/// Whether a file's dirty data is small enough for the log.
pub fn fits_log(st: &NodeState, limit: usize) -> bool {
    st.data.dirty_bytes() <= limit && st.data.pages.len() <= limit / 1024
}

/// Writes the dirty data of a small file through the journal. The caller commits.
pub fn write_through_journal(cx: &FileCtx<'_>, node: &Arc<Node>) -> Result<()> {
    let (_span, dirtied) = cx.writeback_span(std::slice::from_ref(node));
    let Some(mut unit) = collect::collect(cx, node, true)? else { return Ok(()) };
    unit.for_whom = dirtied.of(node.ino);
    let bytes = log_bytes(cx, &unit);
    if bytes > cx.journal.reserve_max() / 2 {
        unit.fresh.drain(..).for_each(|b| cx.cache.release_new(&b));
        return writeback::write_units(cx, vec![unit]);
    }
    let outcome = log_unit(cx, node, &mut unit, bytes).inspect_err(|e| {
        let mut st = node.state.write();
        unit.abort(cx, &mut st);
        st.data.error.get_or_insert(e.duplicate());
    });
    unit.end();
    outcome
}

/// Most bytes that a unit logs with its data.
fn log_bytes(cx: &FileCtx<'_>, unit: &Unit<'_>) -> usize {
    let g = cx.cache.geometry();
    let pieces = unit.runs.iter().map(|r| r.len + (r.len / g.block_size() + 2) * 64).sum::<usize>();
    let frags = unit.runs.iter().map(|r| (r.len >> g.frag_shift) as u64);
    let for_sums = cx.sums.map_or(0, |s| frags.map(|n| s.log_bytes(n)).sum());
    pieces + for_sums + mapping::log_bytes(cx, &unit.node, &unit.extents)
}

/// A piece of a run that lies in one block.
struct Piece<'a, 'r> {
    block: BufRef,
    /// Byte offset in the block.
    at: usize,
    run: &'a DataRun<'r>,
    /// Byte offset in the run.
    from: usize,
    len: usize,
}

fn pieces<'a, 'r>(cx: &FileCtx<'_>, runs: &'a [DataRun<'r>]) -> Result<Vec<Piece<'a, 'r>>> {
    let g = cx.cache.geometry();
    let mut pieces = Vec::new();
    for run in runs {
        let mut from = 0;
        while from < run.len {
            let frag = run.frag + (from >> g.frag_shift) as u64;
            let block = g.block_of_frag(frag);
            let at = (frag - g.frag_of_block(block)) as usize * g.frag_size();
            let len = (g.block_size() - at).min(run.len - from);
            pieces.push(Piece { block: cx.cache.data_block(block)?, at, run, from, len });
            from += len;
        }
    }
    Ok(pieces)
}

/// Logs data and mapping of a unit in one transaction. After an error the unit holds what is not committed.
fn log_unit(cx: &FileCtx<'_>, node: &Arc<Node>, unit: &mut Unit<'_>, log_bytes: usize) -> Result<()> {
    let mut tables = PinnedTables::default();
    let checksums = cx.sums.map_or(Ok(Vec::new()), |sums| checksums_of(cx, sums, unit, &mut tables))?;
    let runs = std::mem::take(&mut unit.runs);
    // The blocks are read before the transaction, because parts of them may be other files'.
    let pieces = pieces(cx, &runs)?;
    let _on_behalf = unit.on_behalf();
    let txn = cx.journal.begin(log_bytes)?;
    let mut st = node.state.write();
    if st.freed {
        unit.abort(cx, &mut st);
        return Ok(());
    }
    for Piece { block, at, run, from, len } in &pieces {
        let bytes: &[u8] = &run.bytes;
        let from = run.from + from;
        txn.edit_data(block).range(*at, *len).copy_from_slice(&bytes[from..from + len]);
        // The block is noted after the change, because a checkpoint that ends meanwhile forgets unchanged blocks.
        cx.journal.note_data_block(block.addr());
    }
    let put = cx.sums.map_or(Ok(()), |sums| checksums.iter().try_for_each(|s| sums.put(&txn, &tables, s)));
    put.and_then(|()| mapping::commit_in(cx, &txn, &mut st, unit)).inspect_err(|_| {
        // Data that no mapping points to must neither be checkpointed nor replayed, because its space may be allocated
        // to another file.
        unit.extents.iter().for_each(|p| txn.free_data(p.run()));
    })
}
