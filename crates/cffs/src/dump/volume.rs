//! Structures of the file system as a whole: superblocks, counters, allocation groups.

use super::dumper::Dumper;
use crate::check::repair::{copies_of, read_super};
use crate::error::{Error, Result};
use crate::format::LONGEST_RUNS_LEN;
use crate::format::superblock::{LABEL_MAX, MAGIC, MOUNT_OPTIONS_MAX};
use crate::format::system::Counters;
use crate::format::{BlockId, BlockKind, Geometry, Superblock, get_u32, get_u64, verify_block};
use crate::superblocks::backup_ags;
use cffs_device::Device;
use cffs_values::{Fields, Value, hex};

/// The superblocks, where they are and where they should be. Works without any that is good.
pub fn superblocks(dev: &dyn Device) -> Vec<Value> {
    let decoded = |at: u64| read_super(dev, at).ok().and_then(|b| Superblock::decode(&b).ok());
    let g = decoded(0).and_then(|sb| Geometry::new(&sb).ok());
    let g = g.or_else(|| copies_of(dev).into_iter().find_map(|(_, sb)| Geometry::new(&sb).ok()));
    let places = g.iter().flat_map(|g| backup_ags(g).map(|ag| (ag, g.ag_start(ag) << g.block_shift)));
    let all = std::iter::once((0, 0)).chain(places);
    all.map(|(ag, at)| superblock_at(dev, ag, at).into()).collect()
}

fn superblock_at(dev: &dyn Device, ag: u64, at: u64) -> Fields {
    let mut f = Fields::new();
    f.put("group", ag).put("byte", at);
    match read_super(dev, at) {
        Ok(b) => drop(f.append(superblock_fields(&b))),
        Err(e) => f.problems(vec![e.to_string()]),
    }
    f
}

/// The fields of a superblock; of something that has not its magic number only that.
pub(super) fn superblock_fields(b: &[u8]) -> Fields {
    let mut f = Fields::new();
    let magic_ok = b[..8] == MAGIC;
    let decoded = Superblock::decode(b);
    let mut wrong: Vec<String> = decoded.as_ref().err().map(|c| c.0.clone()).into_iter().collect();
    let mut whole = b[..crate::format::superblock::SUPERBLOCK_SIZE].to_vec();
    whole[8..12].fill(0);
    let crc_ok = crate::format::crc32c(&whole) == get_u32(b, 8);
    f.put("magic_ok", magic_ok);
    if !magic_ok {
        f.problems(wrong);
        return f;
    }
    f.put("checksum_ok", crc_ok).put("version", get_u32(b, 12));
    f.put("uuid", hex(&b[16..32])).put("label", text(&b[32..32 + LABEL_MAX]));
    f.put("compat", Value::hex(get_u64(b, 96), 16)).put("ro_compat", Value::hex(get_u64(b, 104), 16));
    f.put("incompat", Value::hex(get_u64(b, 112), 16));
    if let Ok(sb) = &decoded {
        f.put("features", sb.feature_names().join(", "));
    }
    f.put("block_shift", b[120]).put("frag_shift", b[121]).put("group_shift", b[122]);
    let state = ["clean", "journaled", "unjournaled", "error"].get(b[123] as usize);
    f.put("state", state.map_or_else(|| format!("unknown ({})", b[123]), |s| (*s).to_string()));
    f.put("total_blocks", get_u64(b, 128)).put("ag_blocks", get_u64(b, 136)).put("copy", get_u64(b, 144));
    f.put("log_start", get_u64(b, 152)).put("log_blocks", get_u64(b, 160)).put("log_uuid", hex(&b[168..184]));
    f.put("sys_start", get_u64(b, 184));
    f.put("hash_seed", vec![Value::hex(get_u64(b, 192), 16), Value::hex(get_u64(b, 200), 16)]);
    f.put("reserve_bp", get_u32(b, 208)).put("mount_count", get_u32(b, 212));
    f.put("credit", get_u64(b, 240));
    f.put("created_ns", Value::Time(get_u64(b, 216) as i64)).put("mounted_ns", Value::Time(get_u64(b, 224) as i64));
    f.put("metadata_fsid", Value::hex(get_u64(b, 232), 16));
    f.put("mount_options", text(&b[256..256 + MOUNT_OPTIONS_MAX]));
    f.put("longest_runs", hex(&b[384..384 + LONGEST_RUNS_LEN]));
    if let Ok(sb) = &decoded {
        wrong.extend(Geometry::new(sb).err().map(|c| c.0));
    }
    f.problems(wrong);
    f
}

fn text(padded: &[u8]) -> Value {
    let end = padded.iter().position(|b| *b == 0).unwrap_or(padded.len());
    Value::Bytes(padded[..end].to_vec())
}

impl Dumper<'_> {
    /// The superblock at the start of an allocation group: 0 is the primary, 1 and the last one have copies.
    pub fn superblock_of(&self, ag: u64) -> Result<Value> {
        self.group_exists(ag)?;
        if ag != 0 && !backup_ags(&self.g).any(|a| a == ag) {
            let list: Vec<String> = backup_ags(&self.g).map(|a| a.to_string()).collect();
            return Error::invalid(format!(
                "allocation group {ag} has no copy of the superblock; those that have one: {}",
                list.join(", ")
            ));
        }
        Ok(superblock_at(self.dev, ag, self.g.ag_start(ag) << self.g.block_shift).into())
    }

    fn group_exists(&self, ag: u64) -> Result<()> {
        if ag >= self.g.ag_count {
            return Error::invalid(format!(
                "there is no allocation group {ag}: the file system has {} (0 to {})",
                self.g.ag_count,
                self.g.ag_count - 1
            ));
        }
        Ok(())
    }

    /// The counters, decoded where they are good.
    pub(super) fn good_counters(&self) -> Option<Counters> {
        let id = BlockId { kind: BlockKind::Counters, addr: self.g.counters_block(), owner: 0 };
        let b = self.read(id.addr).ok()?;
        verify_block(&b, self.g.fsid, id).ok()?;
        Some(Counters::decode(&b))
    }

    /// The counters.
    pub fn counters(&self) -> Value {
        self.meta_at(BlockId { kind: BlockKind::Counters, addr: self.g.counters_block(), owner: 0 }).into()
    }

    /// Header and bitmap of an allocation group.
    pub fn group(&self, ag: u64) -> Result<Value> {
        self.group_exists(ag)?;
        let mut f = Fields::new();
        let g = &self.g;
        f.put("group", ag).put("first_block", g.ag_start(ag)).put("blocks", g.ag_len(ag));
        f.put("first_fragment", g.frag_of_block(g.ag_start(ag))).put("fragments", g.frag_of_block(g.ag_len(ag)));
        if let Some(c) = self.good_counters().filter(|c| c.ags <= ag) {
            f.put("initialized", false);
            f.put("note", format!("only groups below {} are initialized: nothing was ever written here", c.ags));
            return Ok(f.into());
        }
        f.put("initialized", true);
        f.put("header", self.meta_at(BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(ag), owner: ag }));
        let bitmaps = (0..g.bitmap_blocks())
            .map(|i| self.meta_at(BlockId { kind: BlockKind::Bitmap, addr: g.bitmap_block(ag, i), owner: ag }));
        f.put("bitmaps", bitmaps.collect::<Vec<_>>());
        Ok(f.into())
    }
}
