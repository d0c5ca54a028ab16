//! The superblock: 512 bytes at the start of the device, with copies in allocation group 1 and in the last one in use.

use super::crc::crc32c;
pub use super::features::*;
use super::features::{COMPAT_NAMES, INCOMPAT_NAMES, RO_COMPAT_NAMES};
use super::longest_runs::{LONGEST_RUNS_LEN, LongestRuns};
use super::{Corrupt, corrupt, get_u32, get_u64, put_u32, put_u64};

/// Bytes of an encoded superblock.
pub const SUPERBLOCK_SIZE: usize = 512;
/// First bytes of every cffs device.
pub const MAGIC: [u8; 8] = *b"\x89CFFS\r\n\x1a";
/// Version of the format that this code writes and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Longest list of default mount options in bytes.
pub const MOUNT_OPTIONS_MAX: usize = 128;
/// Longest label in bytes.
pub const LABEL_MAX: usize = 64;

/// Whether the file system was left in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Unmounted: nothing is in the log.
    Clean = 0,
    /// Mounted with the journal: mounting again replays the log.
    Journaled = 1,
    /// Mounted without a journal (`metadata=sync` or `delayed`): needs fsck unless unmounted.
    Unjournaled = 2,
    /// An error was found while mounted: needs fsck.
    Error = 3,
}

/// The superblock in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format.
    pub version: u32,
    /// Identity of the file system.
    pub uuid: [u8; 16],
    /// Name given by the user, UTF-8, padded with zeros.
    pub label: [u8; LABEL_MAX],
    /// Features that an older program may ignore.
    pub compat: u64,
    /// Features that an older program may ignore when it only reads.
    pub ro_compat: u64,
    /// Features that a program must know to read the file system at all.
    pub incompat: u64,
    /// log2 of the block size.
    pub block_shift: u8,
    /// log2 of the fragment size.
    pub frag_shift: u8,
    /// log2 of the group size.
    pub group_shift: u8,
    /// Whether the file system was left in order.
    pub state: State,
    /// Allocation group that this copy stands in; 0 is the primary.
    pub copy: u64,
    /// Size in blocks.
    pub total_blocks: u64,
    /// Size of an allocation group in blocks.
    pub ag_blocks: u64,
    /// First block of the internal log, 0 if external.
    pub log_start: u64,
    /// Size of the log in blocks.
    pub log_blocks: u64,
    /// Identity of the external log, zeros if internal.
    pub log_uuid: [u8; 16],
    /// First block of the system area.
    pub sys_start: u64,
    /// Key of the directory hash.
    pub hash_seed: [u64; 2],
    /// Share of the space kept for privileged users, in 1/10,000.
    pub reserve_bp: u32,
    /// Times mounted.
    pub mount_count: u32,
    /// When the file system was made, nanoseconds since 1970.
    pub created: i64,
    /// When it was last mounted, nanoseconds since 1970.
    pub mounted: i64,
    /// What metadata blocks carry, if that is not in the uuid ([`INCOMPAT_METADATA_UUID`]); else 0.
    pub metadata_fsid: u64,
    /// Bytes that maintenance may move, for what was written and not brought together at the last unmount.
    pub maintenance_credit: u64,
    /// Mount options that hold unless the mount says otherwise, padded with zeros.
    pub mount_options: [u8; MOUNT_OPTIONS_MAX],
    /// How long the free runs of each allocation group were at most at the last unmount.
    pub longest_runs: LongestRuns,
}

impl Superblock {
    /// What metadata blocks carry: the first eight bytes of the uuid, or of the one that it had first.
    pub fn fsid(&self) -> u64 {
        if self.incompat & INCOMPAT_METADATA_UUID != 0 { self.metadata_fsid } else { get_u64(&self.uuid, 0) }
    }

    /// This superblock with the fields of a copy that the copies do not follow: what mounting and tuning change is kept up to
    /// date in the primary alone. The identity that metadata carries is not among them.
    pub fn as_in_copy(&self, copy: &Superblock) -> Superblock {
        let own_uuid = INCOMPAT_METADATA_UUID;
        Superblock {
            copy: copy.copy,
            state: copy.state,
            label: copy.label,
            compat: copy.compat,
            ro_compat: copy.ro_compat,
            reserve_bp: copy.reserve_bp,
            mount_options: copy.mount_options,
            uuid: copy.uuid,
            incompat: self.incompat & !own_uuid | copy.incompat & own_uuid,
            metadata_fsid: copy.metadata_fsid,
            mount_count: copy.mount_count,
            maintenance_credit: copy.maintenance_credit,
            longest_runs: copy.longest_runs,
            mounted: copy.mounted,
            ..self.clone()
        }
    }

    /// Encodes with checksum.
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut b = [0u8; SUPERBLOCK_SIZE];
        b[..8].copy_from_slice(&MAGIC);
        put_u32(&mut b, 12, self.version);
        b[16..32].copy_from_slice(&self.uuid);
        b[32..96].copy_from_slice(&self.label);
        put_u64(&mut b, 96, self.compat);
        put_u64(&mut b, 104, self.ro_compat);
        put_u64(&mut b, 112, self.incompat);
        b[120] = self.block_shift;
        b[121] = self.frag_shift;
        b[122] = self.group_shift;
        b[123] = self.state as u8;
        put_u64(&mut b, 128, self.total_blocks);
        put_u64(&mut b, 136, self.ag_blocks);
        put_u64(&mut b, 144, self.copy);
        put_u64(&mut b, 152, self.log_start);
        put_u64(&mut b, 160, self.log_blocks);
        b[168..184].copy_from_slice(&self.log_uuid);
        put_u64(&mut b, 184, self.sys_start);
        put_u64(&mut b, 192, self.hash_seed[0]);
        put_u64(&mut b, 200, self.hash_seed[1]);
        put_u32(&mut b, 208, self.reserve_bp);
        put_u32(&mut b, 212, self.mount_count);
        put_u64(&mut b, 216, self.created as u64);
        put_u64(&mut b, 224, self.mounted as u64);
        put_u64(&mut b, 232, self.metadata_fsid);
        put_u64(&mut b, 240, self.maintenance_credit);
        b[256..256 + MOUNT_OPTIONS_MAX].copy_from_slice(&self.mount_options);
        b[384..384 + LONGEST_RUNS_LEN].copy_from_slice(&self.longest_runs.0);
        let crc = crc32c(&b);
        put_u32(&mut b, 8, crc);
        b
    }

    /// Whether these are the bytes of a superblock, of any version, as they were written.
    pub fn is_whole(b: &[u8]) -> bool {
        let Some(mut copy) = b.first_chunk::<SUPERBLOCK_SIZE>().copied() else { return false };
        put_u32(&mut copy, 8, 0);
        copy[..8] == MAGIC && crc32c(&copy) == get_u32(b, 8)
    }

    /// Decodes and checks magic, checksum, version and features; geometry is checked by [`super::Geometry::new`].
    pub fn decode(b: &[u8]) -> Result<Superblock, Corrupt> {
        if b.len() < SUPERBLOCK_SIZE || b[..8] != MAGIC {
            return corrupt("not a cffs file system (no superblock at the start)");
        }
        let version = get_u32(b, 12);
        if !Superblock::is_whole(b) {
            return corrupt("superblock: checksum does not match");
        }
        if version == 0 || version > FORMAT_VERSION {
            return corrupt(format!(
                "superblock: format version {version}; this program reads versions up to {FORMAT_VERSION}: use a newer one"
            ));
        }
        let incompat = get_u64(b, 112);
        if let Some(names) = unknown(incompat, &INCOMPAT_NAMES) {
            return corrupt(format!("superblock: unknown incompatible feature {names}: use a newer program"));
        }
        let state = match b[123] {
            0 => State::Clean,
            1 => State::Journaled,
            2 => State::Unjournaled,
            3 => State::Error,
            s => return corrupt(format!("superblock: unknown state {s}")),
        };
        let array16 = |off: usize| -> [u8; 16] { b[off..off + 16].try_into().expect("sixteen bytes") };
        Ok(Superblock {
            version,
            uuid: array16(16),
            label: b[32..96].try_into().expect("sixty-four bytes"),
            compat: get_u64(b, 96),
            ro_compat: get_u64(b, 104),
            incompat,
            block_shift: b[120],
            frag_shift: b[121],
            group_shift: b[122],
            state,
            copy: get_u64(b, 144),
            total_blocks: get_u64(b, 128),
            ag_blocks: get_u64(b, 136),
            log_start: get_u64(b, 152),
            log_blocks: get_u64(b, 160),
            log_uuid: array16(168),
            sys_start: get_u64(b, 184),
            hash_seed: [get_u64(b, 192), get_u64(b, 200)],
            reserve_bp: get_u32(b, 208),
            mount_count: get_u32(b, 212),
            created: get_u64(b, 216) as i64,
            mounted: get_u64(b, 224) as i64,
            metadata_fsid: get_u64(b, 232),
            maintenance_credit: get_u64(b, 240),
            mount_options: b[256..256 + MOUNT_OPTIONS_MAX].try_into().expect("as many bytes"),
            longest_runs: LongestRuns(b[384..384 + LONGEST_RUNS_LEN].try_into().expect("as many bytes")),
        })
    }

    /// Features that forbid writing by this program, by name; `None` if there are none.
    pub fn unknown_ro_compat(&self) -> Option<String> {
        unknown(self.ro_compat, &RO_COMPAT_NAMES)
    }

    /// Whether the counters say how much space was never written ([`super::system::Counters::unwritten`]).
    pub fn counts_unwritten(&self) -> bool {
        self.ro_compat & RO_COMPAT_UNWRITTEN != 0
    }

    /// Names of all features set.
    pub fn feature_names(&self) -> Vec<&'static str> {
        let named = |bits: u64, names: &'static [(u64, &'static str)]| {
            names.iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, name)| *name)
        };
        let ro_compat = named(self.ro_compat, &RO_COMPAT_NAMES);
        named(self.incompat, &INCOMPAT_NAMES).chain(ro_compat).chain(named(self.compat, &COMPAT_NAMES)).collect()
    }

    /// The label as text.
    pub fn label_str(&self) -> String {
        let end = self.label.iter().position(|b| *b == 0).unwrap_or(LABEL_MAX);
        String::from_utf8_lossy(&self.label[..end]).into_owned()
    }

    /// The default mount options as text.
    pub fn mount_options_str(&self) -> String {
        let end = self.mount_options.iter().position(|b| *b == 0).unwrap_or(MOUNT_OPTIONS_MAX);
        String::from_utf8_lossy(&self.mount_options[..end]).into_owned()
    }

    /// The uuid in its usual form.
    pub fn uuid_str(&self) -> String {
        let h: String = self.uuid.iter().map(|b| format!("{b:02x}")).collect();
        format!("{}-{}-{}-{}-{}", &h[..8], &h[8..12], &h[12..16], &h[16..20], &h[20..])
    }

    /// Whether inodes stand in their directories.
    pub fn embeds_inodes(&self) -> bool {
        self.incompat & INCOMPAT_NO_EMBED == 0
    }

    /// Whether file data has checksums.
    pub fn has_data_sums(&self) -> bool {
        self.incompat & INCOMPAT_DATA_SUMS != 0
    }

    /// Whether quotas of this kind are kept.
    pub fn has_quota(&self, kind: super::QuotaKind) -> bool {
        self.ro_compat & kind.feature() != 0
    }

    /// Whether small files are placed in groups.
    pub fn groups_files(&self) -> bool {
        self.compat & COMPAT_NO_GROUP == 0
    }
}

fn unknown(bits: u64, names: &[(u64, &str)]) -> Option<String> {
    let known: u64 = names.iter().map(|(bit, _)| bit).sum();
    let rest = bits & !known;
    (rest != 0).then(|| {
        let list: Vec<String> = (0..64).filter(|i| rest >> i & 1 == 1).map(|i| format!("bit {i}")).collect();
        list.join(", ")
    })
}
