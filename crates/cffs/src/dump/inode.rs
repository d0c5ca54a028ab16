//! Inodes: their fields, also of those that do not decode.

use super::records::{attribute, child, extent};
use crate::format::inode::{FLAGS, INODE_AUX, INODE_CORE_SIZE, INODE_HINT, INODE_XATTRS, XATTR_BLOCK_BITS};
use crate::format::xattr::decode_list;
use crate::format::{FileType, Inode, InodeFormat, get_u16, get_u32, get_u64};
use cffs_values::{Fields, Value, hex};

/// The word for a type of file, from its number.
pub(super) fn type_name(t: u8) -> String {
    let name = match FileType::from_mode(u16::from(t) << 12) {
        Some(FileType::Fifo) => "fifo",
        Some(FileType::CharDevice) => "character device",
        Some(FileType::Directory) => "directory",
        Some(FileType::BlockDevice) => "block device",
        Some(FileType::Regular) => "regular file",
        Some(FileType::Symlink) => "symbolic link",
        Some(FileType::Socket) => "socket",
        None => return format!("unknown ({t})"),
    };
    name.to_string()
}

/// All fields of an inode; `b` goes to the end of the room that it has.
pub(super) fn inode_value(b: &[u8]) -> Fields {
    let mut f = Fields::new();
    if b.len() < INODE_CORE_SIZE {
        f.problems([format!("inode: cut off after {} bytes", b.len())]);
        return f;
    }
    let mode = get_u16(b, 12);
    f.put("inode", get_u64(b, 0)).put("generation", get_u32(b, 8)).put("type", type_name((mode >> 12) as u8));
    f.put("mode", format!("{mode:06o}")).put("uid", get_u32(b, 16)).put("gid", get_u32(b, 20));
    f.put("project", get_u32(b, 96)).put("links", get_u32(b, 24)).put("flags", Value::hex(get_u32(b, 28), 8));
    f.put("size", get_u64(b, 32)).put("fragments", get_u64(b, 40)).put("parent", get_u64(b, 80));
    for (name, at) in [("atime_ns", 48), ("mtime_ns", 56), ("ctime_ns", 64), ("btime_ns", 72)] {
        f.put(name, Value::Time(get_u64(b, at) as i64));
    }
    f.put("index_buckets", get_u32(b, 100)).put("aux", get_u64(b, INODE_AUX)).put("hint", get_u64(b, INODE_HINT));
    let xattrs = get_u64(b, INODE_XATTRS);
    f.put("xattr_block", xattrs & ((1 << XATTR_BLOCK_BITS) - 1)).put("inline_bytes", b[15] as usize * 8);
    let mut wrong = Vec::new();
    if get_u32(b, 28) & !FLAGS != 0 {
        wrong.push(format!("unknown flags {:#x}", get_u32(b, 28) & !FLAGS));
    }
    match Inode::decode(b) {
        Err(c) => {
            wrong.push(c.0);
            f.put("format", format!("{} (does not decode)", b[14]));
        }
        Ok(inode) => area(&mut f, &inode, &mut wrong),
    }
    f.problems(wrong);
    f
}

/// What the inline area holds.
fn area(f: &mut Fields, inode: &Inode, wrong: &mut Vec<String>) {
    match &inode.format {
        InodeFormat::Inline(data) if inode.file_type() == FileType::Symlink => {
            f.put("format", "inline").put("target", Value::Bytes(data.clone()));
        }
        InodeFormat::Inline(data) => drop(f.put("format", "inline").put("contents_hex", hex(data))),
        InodeFormat::Extents(list) => {
            f.put("format", "extents").put_list("extents", list, extent);
        }
        InodeFormat::Tree { height, children } => {
            f.put("format", "tree").put("height", *height).put_list("children", children, child);
        }
    }
    if !inode.xattrs.is_empty() {
        let mut list = Vec::new();
        wrong.extend(decode_list(&inode.xattrs, true, &mut list).err().map(|c| c.0));
        f.put_list("attributes", &list, attribute);
    }
}
