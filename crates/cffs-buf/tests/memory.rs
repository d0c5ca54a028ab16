//! What buffers cost in memory. In a process of its own, whose memory nothing else changes.

use cffs_buf::AlignedBuf;

/// Resident bytes of this process.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
}

/// A cache that counts the bytes of its buffers has to be right about the memory they take.
#[test]
fn buffers_take_little_more_than_their_length() {
    for len in [1024, 4096, 16384, 65536] {
        let src = vec![1; len];
        let total = 64 << 20;
        let before = resident();
        let buffers: Vec<_> = (0..total / len).map(|_| AlignedBuf::from_slice(&src)).collect();
        let taken = resident().saturating_sub(before);
        assert!(taken < total + total / 4, "{} buffers of {len} take {taken} bytes for {total}", buffers.len());
    }
}
