//! The buffer of an `ioctl`: a header, and a piece of JSON.

use cffs_buf::CONTROL_LEN;

const MAGIC: u32 = u32::from_le_bytes(*b"cffc");
const VERSION: u32 = 1;
const HEADER: usize = 32;
/// Most bytes of JSON in one buffer.
pub(super) const BODY_MAX: usize = CONTROL_LEN - HEADER;

/// The contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) ticket: u64,
    /// The position to continue from; in a reply the length of the whole answer.
    pub(super) position: u64,
    pub(super) body: &'a [u8],
}

impl Frame<'_> {
    /// `None` if the body does not fit.
    pub(super) fn encode(&self) -> Option<Box<[u8; CONTROL_LEN]>> {
        let mut b = Box::new([0; CONTROL_LEN]);
        b[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4..8].copy_from_slice(&VERSION.to_le_bytes());
        b[8..12].copy_from_slice(&u32::try_from(self.body.len()).ok()?.to_le_bytes());
        b[16..24].copy_from_slice(&self.ticket.to_le_bytes());
        b[24..32].copy_from_slice(&self.position.to_le_bytes());
        b.get_mut(HEADER..HEADER + self.body.len())?.copy_from_slice(self.body);
        Some(b)
    }

    /// `None` if this is not one.
    pub(super) fn decode(b: &[u8]) -> Option<Frame<'_>> {
        let u32_at = |at: usize| Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?));
        if u32_at(0)? != MAGIC || u32_at(4)? != VERSION {
            return None;
        }
        let len = u32_at(8)? as usize;
        Some(Frame { ticket: u64_at(16)?, position: u64_at(24)?, body: b.get(HEADER..)?.get(..len)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_others_are_refused() {
        let frame = Frame { ticket: 3, position: 1 << 40, body: b"{}" };
        let bytes = frame.encode().unwrap();
        assert_eq!(Frame::decode(&bytes[..]), Some(frame));
        assert_eq!(Frame::decode(&bytes[..33]), None, "cut off");
        assert_eq!(Frame::decode(&[]), None);
        for at in [0, 4, 11] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x40;
            assert_eq!(Frame::decode(&wrong[..]), None, "byte {at}");
        }
        assert!(Frame { ticket: 0, position: 0, body: &[0; BODY_MAX] }.encode().is_some());
        assert!(Frame { ticket: 0, position: 0, body: &[0; BODY_MAX + 1] }.encode().is_none());
    }
}
