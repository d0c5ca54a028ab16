//! Contents of a regular file, sparse, with cheap copies.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// Contents of a regular file. Copies share pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    /// Pages that were ever written and not cut off; the rest is zeros. Bytes beyond `size` are zeros.
    pages: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Content {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sets the size: cuts off, or adds a hole.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE));
            if let Some(page) = self.pages.get_mut(&(size / PAGE)) {
                Arc::make_mut(page)[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
    }

    /// Writes at an offset, extending the file where needed.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let n = ((PAGE - at % PAGE) as usize).min(data.len() - done);
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Arc::new(vec![0; PAGE as usize]));
            Arc::make_mut(page)[(at % PAGE) as usize..][..n].copy_from_slice(&data[done..done + n]);
            done += n;
        }
        if !data.is_empty() {
            self.size = self.size.max(offset + data.len() as u64);
        }
    }

    /// Makes a range zeros; the size stays.
    pub fn zero(&mut self, from: u64, to: u64) {
        let to = to.min(self.size);
        let touched: Vec<u64> =
            self.pages.range(from / PAGE..to.div_ceil(PAGE).max(from / PAGE)).map(|(p, _)| *p).collect();
        for page in touched {
            let (start, end) = (from.max(page * PAGE), to.min((page + 1) * PAGE));
            if let Some(p) = self.pages.get_mut(&page).filter(|_| start < end) {
                Arc::make_mut(p)[(start - page * PAGE) as usize..(end - page * PAGE) as usize].fill(0);
            }
        }
    }

    /// Takes a range out, which ends before the file does.
    pub fn collapse(&mut self, from: u64, to: u64) {
        let old = self.clone();
        self.resize(from);
        for (page, data) in old.pages.range(to / PAGE..) {
            let start = (page * PAGE).max(to);
            let end = (page * PAGE + PAGE).min(old.size);
            if start < end {
                self.write(start - (to - from), &data[(start - page * PAGE) as usize..(end - page * PAGE) as usize]);
            }
        }
        self.size = old.size - (to - from);
    }

    /// Puts a gap of zeros in.
    pub fn insert(&mut self, at: u64, len: u64) {
        let old = self.clone();
        self.resize(at);
        for (page, data) in old.pages.range(at / PAGE..) {
            let start = (page * PAGE).max(at);
            let end = (page * PAGE + PAGE).min(old.size);
            if start < end {
                self.write(start + len, &data[(start - page * PAGE) as usize..(end - page * PAGE) as usize]);
            }
        }
        self.size = old.size + len;
    }

    /// Copies a range of another file, which has all of it.
    pub fn copy(&mut self, from: &Content, offset: u64, to: u64, len: u64) {
        self.size = self.size.max(to + len);
        self.zero(to, to + len);
        for (page, data) in from.pages.range(offset / PAGE..) {
            let start = (page * PAGE).max(offset);
            let end = (page * PAGE + PAGE).min(offset + len);
            if start < end {
                self.write(to + (start - offset), &data[(start - page * PAGE) as usize..(end - page * PAGE) as usize]);
            }
        }
    }

    /// Reads into `buf`; returns how much there was before the end of the file.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let n = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        buf[..n].fill(0);
        for (page, data) in self.pages.range(offset / PAGE..=offset.saturating_add(n as u64) / PAGE) {
            let start = page * PAGE;
            let from = start.max(offset);
            let to = (start + PAGE).min(offset + n as u64);
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&data[(from - start) as usize..(to - start) as usize]);
            }
        }
        n
    }

    /// True if the range (cut at the end of the file) holds zeros only.
    pub fn zeros(&self, from: u64, to: u64) -> bool {
        self.next_nonzero(from).is_none_or(|at| at >= to)
    }

    /// Offset of the first byte at or after `from` that is not zero.
    pub fn next_nonzero(&self, from: u64) -> Option<u64> {
        for (page, data) in self.pages.range(from / PAGE..) {
            let start = page * PAGE;
            let skip = from.saturating_sub(start) as usize;
            if let Some(i) = data[skip..].iter().position(|b| *b != 0) {
                return Some(start + (skip + i) as u64);
            }
        }
        None
    }

    /// Ranges of the file that may hold something else than zeros, in order (whole pages, cut at the end of the file).
    pub fn data_ranges(&self) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for page in self.pages.keys() {
            let (from, to) = (page * PAGE, (page * PAGE + PAGE).min(self.size));
            match out.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ => out.push((from, to)),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_vector() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let (mut c, mut v) = (Content::default(), Vec::<u8>::new());
            for _ in 0..40 {
                let at = rng.usize(..20_000);
                let to = (at + rng.usize(1..9000)).min(v.len());
                if rng.u8(..4) == 0 {
                    c.resize(at as u64);
                    v.resize(at, 0);
                } else if rng.u8(..3) == 0 && at < to {
                    match rng.u8(..4) {
                        0 => {
                            c.zero(at as u64, to as u64);
                            v[at..to].fill(0);
                        }
                        1 => {
                            c.collapse(at as u64, to as u64);
                            v.drain(at..to);
                        }
                        2 => {
                            c.insert(at as u64, (to - at) as u64);
                            v.splice(at..at, vec![0; to - at]);
                        }
                        _ => {
                            let target = rng.usize(..30_000);
                            let (was, piece) = (c.clone(), v[at..to].to_vec());
                            c.copy(&was, at as u64, target as u64, (to - at) as u64);
                            v.resize(v.len().max(target + piece.len()), 0);
                            v[target..target + piece.len()].copy_from_slice(&piece);
                        }
                    }
                } else {
                    let data: Vec<u8> = (0..rng.usize(..9000)).map(|_| rng.u8(..)).collect();
                    c.write(at as u64, &data);
                    if !data.is_empty() {
                        v.resize(v.len().max(at + data.len()), 0);
                        v[at..at + data.len()].copy_from_slice(&data);
                    }
                }
                assert_eq!(c.size(), v.len() as u64);
                let (from, len) = (rng.usize(..25_000), rng.usize(..25_000));
                let mut buf = vec![0xee; len];
                let n = c.read(from as u64, &mut buf);
                let want = v.get(from..).unwrap_or(&[]);
                assert_eq!(buf[..n], want[..n]);
                assert_eq!(n, want.len().min(len));
                let first = v.iter().skip(from).position(|b| *b != 0).map(|i| (from + i) as u64);
                assert_eq!(c.next_nonzero(from as u64), first);
                for (i, b) in v.iter().enumerate().filter(|(_, b)| **b != 0) {
                    assert!(c.data_ranges().iter().any(|(f, t)| (*f..*t).contains(&(i as u64))), "byte {i} is {b}");
                }
            }
        }
    }

    #[test]
    fn the_largest_offset_works() {
        let mut c = Content::default();
        c.write(i64::MAX as u64 - 1, b"x");
        assert_eq!(c.size(), i64::MAX as u64);
        let mut b = [0; 10];
        assert_eq!(c.read(i64::MAX as u64 - 4, &mut b), 4);
        assert_eq!(b[..4], [0, 0, 0, b'x']);
        assert_eq!(c.read(u64::MAX - 1, &mut b), 0);
    }
}
