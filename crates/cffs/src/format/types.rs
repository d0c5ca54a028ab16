//! What every structure is made of: numbers and addresses, limits, little-endian integers, and the error of all decoders.

/// Inode number.
pub type Ino = u64;
/// Address of a block, in blocks from the start of the device.
pub type BlockAddr = u64;
/// Address of a fragment, in fragments from the start of the device.
pub type FragAddr = u64;

/// Inode number of the root directory.
pub const ROOT_INO: Ino = 1;
/// Inode number of the inode locator table.
pub const LOCATOR_INO: Ino = 2;
/// Inode number of the external inode table.
pub const EXTERNAL_INO: Ino = 3;
/// Inode number of the user quota file.
pub const USER_QUOTA_INO: Ino = 4;
/// Inode number of the group quota file.
pub const GROUP_QUOTA_INO: Ino = 5;
/// Inode number of the project quota file.
pub const PROJECT_QUOTA_INO: Ino = 6;
/// Inodes 1 to this one live in the system area at fixed places.
pub const LAST_SYSTEM_INO: Ino = 6;
/// First number given to a file.
pub const FIRST_USER_INO: Ino = 16;

/// Smallest fragment in bytes.
pub const FRAGMENT_SIZE_MIN: u32 = 512;

/// Longest name of a directory entry in bytes.
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target in bytes.
pub const SYMLINK_MAX: usize = 4095;
/// Largest file in bytes: the largest offset that `off_t` expresses.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Largest link count.
pub const LINK_MAX: u32 = 1_000_000_000;

/// A structure that is not what it should be. The text names the structure, where it is and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Corrupt(pub String);

/// Shorthand for an error of this module.
pub fn corrupt<T>(what: impl Into<String>) -> Result<T, Corrupt> {
    Err(Corrupt(what.into()))
}

/// Reads a `u16`. The caller guarantees the bounds (all offsets are within a fixed-size structure).
#[inline]
pub fn get_u16(b: &[u8], off: usize) -> u16 {
    u16::from_le_bytes(b[off..off + 2].try_into().expect("two bytes"))
}
/// Reads a `u32`; bounds as for [`get_u16`].
#[inline]
pub fn get_u32(b: &[u8], off: usize) -> u32 {
    u32::from_le_bytes(b[off..off + 4].try_into().expect("four bytes"))
}
/// Reads a `u64`; bounds as for [`get_u16`].
#[inline]
pub fn get_u64(b: &[u8], off: usize) -> u64 {
    u64::from_le_bytes(b[off..off + 8].try_into().expect("eight bytes"))
}
/// Writes a `u16`.
#[inline]
pub fn put_u16(b: &mut [u8], off: usize, v: u16) {
    b[off..off + 2].copy_from_slice(&v.to_le_bytes());
}
/// Writes a `u32`.
#[inline]
pub fn put_u32(b: &mut [u8], off: usize, v: u32) {
    b[off..off + 4].copy_from_slice(&v.to_le_bytes());
}
/// Writes a `u64`.
#[inline]
pub fn put_u64(b: &mut [u8], off: usize, v: u64) {
    b[off..off + 8].copy_from_slice(&v.to_le_bytes());
}

/// Rounds up to a multiple of eight.
#[inline]
pub const fn align8(n: usize) -> usize {
    (n + 7) & !7
}
