//! Extents in a tree: keys with a distance, values with a length. No two extents overlap.

use super::edit::Edit;
use super::node::{Layout, Source};
use super::root::Root;
use crate::codec::corrupt;
use crate::extent::Extent;
use std::io;
use std::ops::ControlFlow;

/// A key that counts blocks.
pub(crate) trait ExtentKey: Copy + Ord {
    fn plus(self, blocks: u64) -> io::Result<Self>;
    /// Blocks from `earlier` to `self`, which are near each other.
    fn since(self, earlier: Self) -> u64;
}

/// A tree of extents.
pub(crate) trait ExtentLayout: Layout<Key: ExtentKey, Value = Extent> {}
impl<L: Layout<Key: ExtentKey, Value = Extent>> ExtentLayout for L {}

/// The extents that overlap `start` and the `blocks` behind it, cut to that range, in order.
pub(crate) fn lookup_extents<L: ExtentLayout, S: Source>(
    root: &Root<L>,
    src: &S,
    start: L::Key,
    blocks: u64,
) -> io::Result<Vec<(L::Key, Extent)>> {
    let mut found = whole_extents(root, src, start, blocks, usize::MAX)?;
    let end = start.plus(blocks)?;
    for (key, extent) in &mut found {
        let skip = if *key < start { start.since(*key) } else { 0 };
        let after = key.plus(u64::from(extent.blocks))?;
        let cut = if after > end { after.since(end) } else { 0 };
        if skip + cut > 0 {
            *extent = extent.part(skip as u32, extent.blocks - (skip + cut) as u32);
            *key = key.plus(skip)?;
        }
    }
    Ok(found)
}

/// The extents that overlap the range, whole; at most `max`.
fn whole_extents<L: ExtentLayout, S: Source>(
    root: &Root<L>,
    src: &S,
    start: L::Key,
    blocks: u64,
    max: usize,
) -> io::Result<Vec<(L::Key, Extent)>> {
    let end = start.plus(blocks)?;
    let mut found = Vec::new();
    if let Some((key, extent)) = root.floor(src, &start)?
        && key < start
        && key.plus(u64::from(extent.blocks))? > start
    {
        found.push((key, extent));
    }
    let mut last_end = match found.last() {
        Some((key, extent)) => key.plus(u64::from(extent.blocks))?,
        None => start,
    };
    let mut overlap = false;
    root.scan(src, &start, &mut |key, extent| {
        if *key >= end || found.len() >= max {
            return ControlFlow::Break(());
        }
        match key.plus(u64::from(extent.blocks)) {
            Ok(after) if *key >= last_end => last_end = after,
            _ => overlap = true,
        }
        found.push((*key, extent.clone()));
        ControlFlow::Continue(())
    })?;
    if overlap { Err(corrupt("extents overlap each other")) } else { Ok(found) }
}

/// Takes the range out of the tree. What was there, cut to the range, is appended to `displaced`.
pub(crate) fn remove_extents<L: ExtentLayout, S: Source>(
    root: &mut Root<L>,
    edit: &mut Edit<'_, S>,
    start: L::Key,
    blocks: u64,
    displaced: &mut Vec<(L::Key, Extent)>,
) -> io::Result<()> {
    let end = start.plus(blocks)?;
    loop {
        const AT_ONCE: usize = 256;
        let found = whole_extents(root, edit.src, start, blocks, AT_ONCE)?;
        let all = found.len() < AT_ONCE;
        for (key, extent) in found {
            if !root.remove(edit, &key)? {
                return Err(corrupt("an extent is not where its key leads"));
            }
            let skip = if key < start { start.since(key) as u32 } else { 0 };
            let after = key.plus(u64::from(extent.blocks))?;
            let cut = if after > end { after.since(end) as u32 } else { 0 };
            if skip > 0 {
                root.insert(edit, key, extent.part(0, skip))?;
            }
            if cut > 0 {
                root.insert(edit, end, extent.part(extent.blocks - cut, cut))?;
            }
            displaced.push((key.plus(u64::from(skip))?, extent.part(skip, extent.blocks - skip - cut)));
        }
        if all {
            return Ok(());
        }
    }
}

/// Puts an extent into a range that is empty.
pub(crate) fn insert_extent<L: ExtentLayout, S: Source>(
    root: &mut Root<L>,
    edit: &mut Edit<'_, S>,
    key: L::Key,
    extent: Extent,
) -> io::Result<()> {
    root.insert(edit, key, extent)
}
