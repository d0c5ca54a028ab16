//! Settings of a new file system.

use crate::format::QuotaKind;

/// Settings of a new file system.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MkfsOptions {
    /// Block size in bytes: a power of two, 512 to 65536.
    pub block_size: u32,
    /// Fragment size in bytes: a power of two, an eighth of the block to a block, 512 or more. `None`: a quarter of the
    /// block, at least a sector of the device.
    pub frag_size: Option<u32>,
    /// Group size in bytes: a power of two, 16 KiB to 4 MiB, at least a block.
    pub group_size: u32,
    /// Size of the log in bytes. `None`: 1/64 of the device, 4 MiB to 128 MiB, at most a quarter of the device; of an
    /// external log device all, at most 128 MiB.
    pub log_bytes: Option<u64>,
    /// Name of the file system, at most 64 bytes.
    pub label: String,
    /// Identity. `None`: random.
    pub uuid: Option<[u8; 16]>,
    /// Key of the directory hash. `None`: random.
    pub hash_seed: Option<[u64; 2]>,
    /// Share of the space kept for privileged users, in 1/10,000.
    pub reserve_bp: u32,
    /// Inodes in chunks outside the directories.
    pub no_embed: bool,
    /// Conventional placement instead of groups.
    pub no_group: bool,
    /// Directory blocks stand in the data groups (the 1997 placement).
    pub dirs_with_data: bool,
    /// Checksums of file data.
    pub data_sums: bool,
    /// Quotas to keep.
    pub quota: Vec<QuotaKind>,
    /// Time of creation in nanoseconds since 1970. `None`: now.
    pub now_ns: Option<i64>,
    /// Bytes of the device to use. `None`: all.
    pub size: Option<u64>,
    /// Size of an allocation group in blocks. `None`: chosen from the device's size.
    pub ag_blocks: Option<u64>,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
}

setters!(MkfsOptions {
    block_size: u32,
    frag_size: Option<u32>,
    group_size: u32,
    log_bytes: Option<u64>,
    label: String,
    uuid: Option<[u8; 16]>,
    hash_seed: Option<[u64; 2]>,
    reserve_bp: u32,
    no_embed: bool,
    no_group: bool,
    dirs_with_data: bool,
    data_sums: bool,
    quota: Vec<QuotaKind>,
    now_ns: Option<i64>,
    size: Option<u64>,
    ag_blocks: Option<u64>,
    root_uid: u32,
    root_gid: u32,
});

impl Default for MkfsOptions {
    fn default() -> Self {
        MkfsOptions {
            block_size: 4096,
            frag_size: None,
            group_size: 256 << 10,
            log_bytes: None,
            label: String::new(),
            uuid: None,
            hash_seed: None,
            reserve_bp: 500,
            no_embed: false,
            no_group: false,
            dirs_with_data: false,
            data_sums: false,
            quota: Vec::new(),
            now_ns: None,
            size: None,
            ag_blocks: None,
            root_uid: 0,
            root_gid: 0,
        }
    }
}
