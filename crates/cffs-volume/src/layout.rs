//! Where the bytes of a stripe or a concatenation are.

/// Part of a request that lies on one member, in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) member: usize,
    /// Byte within the data of the member.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Layout {
    /// Each member begins where the one before it ends. The values are their ends.
    Concat(Vec<u64>),
    /// Units of so many bytes go to so many members by turns.
    Stripe { unit: u64, members: u64 },
}

impl Layout {
    /// The first piece of a range on the volume, which must lie within it.
    fn first(&self, offset: u64, len: u64) -> Option<Piece> {
        match self {
            Layout::Concat(ends) => {
                let member = ends.partition_point(|end| *end <= offset);
                let end = *ends.get(member)?;
                let start = if member == 0 { 0 } else { ends[member - 1] };
                Some(Piece { member, offset: offset - start, len: len.min(end - offset) })
            }
            Layout::Stripe { unit, members } => {
                let (number, within) = (offset / unit, offset % unit);
                let piece = Piece {
                    member: (number % members) as usize,
                    offset: number / members * unit + within,
                    len: len.min(unit - within),
                };
                Some(piece)
            }
        }
    }

    /// The pieces of a range, in its order.
    pub(crate) fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + '_ {
        let mut done = 0;
        std::iter::from_fn(move || {
            if done >= len {
                return None;
            }
            let piece = self.first(offset + done, len - done)?;
            done += piece.len;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(layout: &Layout, offset: u64, len: u64) -> Vec<(usize, u64, u64)> {
        layout.pieces(offset, len).map(|p| (p.member, p.offset, p.len)).collect()
    }

    #[test]
    fn units_go_round() {
        let stripe = Layout::Stripe { unit: 100, members: 3 };
        assert_eq!(list(&stripe, 0, 100), [(0, 0, 100)]);
        assert_eq!(list(&stripe, 350, 20), [(0, 150, 20)]);
        assert_eq!(list(&stripe, 250, 260), [(2, 50, 50), (0, 100, 100), (1, 100, 100), (2, 100, 10)]);
        assert_eq!(list(&stripe, 250, 0), []);
    }

    #[test]
    fn members_follow_each_other() {
        let concat = Layout::Concat(vec![100, 150, 400]);
        assert_eq!(list(&concat, 0, 100), [(0, 0, 100)]);
        assert_eq!(list(&concat, 100, 10), [(1, 0, 10)]);
        assert_eq!(list(&concat, 90, 100), [(0, 90, 10), (1, 0, 50), (2, 0, 40)]);
    }

    /// Every byte of a volume is on exactly one byte of a member.
    #[test]
    fn nothing_is_twice() {
        for layout in [Layout::Stripe { unit: 8, members: 3 }, Layout::Concat(vec![40, 48, 96])] {
            let mut seen = std::collections::HashSet::new();
            for at in 0..96 {
                let p = layout.pieces(at, 1).next().unwrap();
                assert!(seen.insert((p.member, p.offset)) && p.len == 1);
            }
        }
    }
}
