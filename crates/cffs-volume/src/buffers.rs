//! Cutting the buffers of a request.

use std::io::{IoSlice, IoSliceMut};

/// Bytes of a gathered write.
pub(crate) fn total(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|b| b.len() as u64).sum()
}

/// Bytes of a scattered read.
pub(crate) fn total_mut(bufs: &[IoSliceMut<'_>]) -> u64 {
    bufs.iter().map(|b| b.len() as u64).sum()
}

/// Takes bytes from the front of gathered buffers.
pub(crate) struct Cutter<'a> {
    rest: &'a [u8],
    more: std::slice::Iter<'a, IoSlice<'a>>,
}

impl<'a> Cutter<'a> {
    pub(crate) fn new(bufs: &'a [IoSlice<'a>]) -> Self {
        Cutter { rest: &[], more: bufs.iter() }
    }

    /// Appends the next `n` bytes to `out`, or as many as there are.
    pub(crate) fn take(&mut self, mut n: u64, out: &mut Vec<IoSlice<'a>>) {
        while n > 0 {
            while self.rest.is_empty() {
                let Some(next) = self.more.next() else { return };
                self.rest = next;
            }
            let (head, tail) = self.rest.split_at((self.rest.len() as u64).min(n) as usize);
            out.push(IoSlice::new(head));
            n -= head.len() as u64;
            self.rest = tail;
        }
    }
}

/// Takes bytes from the front of scattered buffers.
pub(crate) struct CutterMut<'a, 'b> {
    rest: &'a mut [u8],
    more: std::slice::IterMut<'a, IoSliceMut<'b>>,
}

impl<'a, 'b> CutterMut<'a, 'b> {
    pub(crate) fn new(bufs: &'a mut [IoSliceMut<'b>]) -> Self {
        CutterMut { rest: &mut [], more: bufs.iter_mut() }
    }

    /// Appends the next `n` bytes to `out`, or as many as there are.
    pub(crate) fn take(&mut self, mut n: u64, out: &mut Vec<IoSliceMut<'a>>) {
        while n > 0 {
            while self.rest.is_empty() {
                let Some(next) = self.more.next() else { return };
                self.rest = next;
            }
            let rest = std::mem::take(&mut self.rest);
            let at = (rest.len() as u64).min(n) as usize;
            let (head, tail) = rest.split_at_mut(at);
            out.push(IoSliceMut::new(head));
            n -= at as u64;
            self.rest = tail;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_cut_anywhere() {
        let bytes: Vec<u8> = (0..100).collect();
        let bufs: Vec<IoSlice<'_>> = [&bytes[..10], &[], &bytes[10..60], &bytes[60..]].map(IoSlice::new).to_vec();
        let mut cutter = Cutter::new(&bufs);
        let mut at = 0;
        for n in [5, 10, 0, 50, 30] {
            let mut out = Vec::new();
            cutter.take(n, &mut out);
            let all: Vec<u8> = out.iter().flat_map(|b| b.to_vec()).collect();
            assert_eq!(all, bytes[at..(at + n as usize).min(100)]);
            at += n as usize;
        }
        let (mut a, mut b) = ([0; 7], [0; 13]);
        let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        let mut cutter = CutterMut::new(&mut bufs);
        for (n, value) in [(3, 1), (10, 2), (7, 3)] {
            let mut out = Vec::new();
            cutter.take(n, &mut out);
            out.iter_mut().for_each(|b| b.fill(value));
        }
        assert_eq!(a, [1, 1, 1, 2, 2, 2, 2]);
        assert_eq!(b, [2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3]);
    }
}
