//! Direct writes beside buffered reads of the same file.

use crate::raw::raw;
use crate::{expect, failed, on_each};

/// A read after the completion of a write sees it, also while others read the same pages into the cache.
#[test]
fn a_buffered_read_sees_a_direct_write_that_is_done() {
    on_each("buffered_read_beside_aio", |disk| {
        let m = disk.mount();
        let lines = raw(&["read_beside", &m.path("file"), "64", "3"]).map_err(failed("a direct write"))?;
        let (writes, stale) = lines[0].split_once(' ').unwrap();
        expect(writes.parse::<u64>().unwrap() > 100, || format!("only {writes} writes in the time"))?;
        expect(stale == "0", || format!("{stale} of {writes} reads after a completed write saw old bytes"))
    });
}
