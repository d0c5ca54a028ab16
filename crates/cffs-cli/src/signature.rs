//! Recognizes what else may be on a device, so that mkfs does not destroy it and errors can say what it is.

use cffs::device::{Device, IoKind};

/// Bytes at the start of a device that hold every signature known here.
const LOOK_AT: u64 = 128 << 10;

/// Magic bytes at an offset, and what has them. More specific ones first.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, &cffs::format::superblock::MAGIC, "a cffs file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (0x400, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcachefs file system"),
    (0x1018, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9", "a bcachefs file system"),
    (0x10034, b"ReIsEr", "a ReiserFS file system"),
    (0x8000, b"JFS1", "a JFS file system"),
    (0x406, b"\x34\x34", "a NILFS2 file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (0, b"hsqs", "a squashfs file system"),
    (0, b"\x45\x3d\xcd\x28", "a cramfs file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0x400, b"H+\x00\x04", "an HFS+ file system"),
    (32, b"NXSB", "an APFS container"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (512, b"LABELONE", "an LVM physical volume"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a Linux RAID member"),
    (0, b"\xfc\x4e\x2b\xa9", "a Linux RAID member"),
    (0, b"QFI\xfb", "a QCOW2 virtual disk"),
    (0, b"KDMV", "a VMDK virtual disk"),
    (0x40, b"\x7f\x10\xda\xbe", "a VDI virtual disk"),
    (512, b"EFI PART", "a GPT partition table"),
    (510, b"\x55\xaa", "a partition table or boot sector"),
];

/// What the device holds, by its signature; `None` if there is none that is known.
pub fn detect(dev: &dyn Device) -> std::io::Result<Option<&'static str>> {
    let sector = u64::from(dev.sector_size());
    let len = LOOK_AT.min(dev.len()) / sector * sector;
    let mut start = vec![0; len as usize];
    if !start.is_empty() {
        dev.read_at(IoKind::Super, 0, &mut start)?;
    }
    Ok(detect_in(&start))
}

fn detect_in(start: &[u8]) -> Option<&'static str> {
    let found = SIGNATURES.iter().find(|(offset, magic, _)| start.get(*offset..*offset + magic.len()) == Some(*magic));
    found.map(|(_, _, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::device::MemoryDevice;

    #[test]
    fn every_signature_is_recognized_and_zeros_are_none() {
        let dev = MemoryDevice::new(1 << 20);
        assert_eq!(detect(&dev).unwrap(), None);
        for (offset, magic, name) in SIGNATURES {
            let mut start = vec![0; LOOK_AT as usize];
            start[*offset..*offset + magic.len()].copy_from_slice(magic);
            dev.write_at(IoKind::Super, 0, &start).unwrap();
            assert_eq!(detect(&dev).unwrap(), Some(*name));
        }
        assert_eq!(detect(&MemoryDevice::new(512)).unwrap(), None, "shorter than the offsets");
        assert_eq!(detect(&MemoryDevice::new(0)).unwrap(), None);
    }
}
