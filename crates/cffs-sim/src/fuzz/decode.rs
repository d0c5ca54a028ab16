//! Decoders and editors of `cffs::format` on damaged blocks, without any device.
//!
//! What must hold: nothing panics; what was decoded and is encoded again decodes to the same; a directory block that was
//! found valid stays valid under every edit that its entries allow.

use super::corpus::{Corpus, Pool};
use super::limits::no_panic;
use super::mutate::damage;
use super::outcome::{Done, Failure};
use super::pieces::KINDS;
use super::units::{Unit, UnitKind};
use cffs::acl::Acl;
use cffs::format::dirblock::{self, EntryKind, NewEntry, Plain};
use cffs::format::geometry::INODE_SLOT_SIZE;
use cffs::format::inode::INODE_CORE_SIZE;
use cffs::format::log::{self, LogHeader, Record, TXN_HEADER};
use cffs::format::system::{COUNT_FREE_FRAGS, COUNTERS_LEN, Counters};
use cffs::format::table::{LOCATOR_SIZE, Location, TableShape};
use cffs::format::xattr::{ChainBlock, Namespace, XATTR_NEXT, decode_list};
use cffs::format::{
    BlockId, BlockKind, Extent, Inode, META_HEADER_SIZE, QuotaRecord, ag, block_owner, dirindex, extent, get_u32,
    get_u64, quota, sums, table, verify_block,
};
use cffs::{FileType, Geometry, Superblock};
use fastrand::Rng;

/// Bytes, and what they were before the damage.
struct Subject<'a> {
    unit: Unit,
    g: &'a Geometry,
    sb: &'a Superblock,
    pool: &'a Pool,
    b: Vec<u8>,
}

/// Damages one block and decodes it.
pub fn case(corpus: &Corpus, rng: &mut Rng) -> Result<Done, Failure> {
    let (kind, piece) = loop {
        let kind = rng.usize(..KINDS);
        if let Some(piece) = corpus.index.pick(rng, kind) {
            break (kind, piece);
        }
    };
    let (sample, unit, bytes) = &corpus.pieces[piece];
    let s = &corpus.samples[*sample];
    let mut subject = Subject { unit: *unit, g: &s.g, sb: &s.sb, pool: &s.pool, b: bytes.clone() };
    for _ in 0..[1, 1, 2, 3, 6][rng.usize(..5)] {
        let mut others =
            |rng: &mut Rng| corpus.index.pick(rng, kind).map_or_else(Vec::new, |i| corpus.pieces[i].2.clone());
        damage(rng, unit, &s.pool, &mut subject.b, &mut others);
    }
    if rng.u8(..16) != 0 {
        unit.reseal(&mut subject.b);
    }
    let accepted = no_panic("decoding", || subject.decode(rng))?.map_err(|what| {
        Failure::new(
            format!("{:?}: {}", unit.kind, what.split(':').next().unwrap_or("")),
            format!("{:?}: {what}", unit.kind),
        )
    })?;
    Ok(Done { accepted, ..Done::default() })
}

/// What must be equal.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, a: &T, b: &T) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: {a:?} became {b:?}")) }
}

impl Subject<'_> {
    /// True if something was decoded.
    fn decode(&mut self, rng: &mut Rng) -> Result<bool, String> {
        match self.unit.kind {
            UnitKind::Super => self.superblock(rng),
            UnitKind::LogHeader => self.log_header(),
            UnitKind::Txn => self.transaction(),
            UnitKind::Meta(kind) => {
                let id = BlockId { kind, addr: self.unit.at >> self.g.block_shift, owner: block_owner(&self.b) };
                let verified = verify_block(&self.b, self.g.fsid, id).is_ok();
                // What is behind the header is decoded in any case: a right header is easily had.
                Ok(self.block(kind, rng)? && verified)
            }
        }
    }

    fn superblock(&self, rng: &mut Rng) -> Result<bool, String> {
        let Ok(sb) = Superblock::decode(&self.b) else { return Ok(false) };
        same("superblock", &sb, &Superblock::decode(&sb.encode()).map_err(|c| c.0)?)?;
        let _ = (sb.feature_names(), sb.label_str(), sb.uuid_str(), sb.mount_options_str(), sb.unknown_ro_compat());
        let Ok(g) = Geometry::new(&sb) else { return Ok(false) };
        for ag in [0, 1, g.ag_count / 2, g.ag_count - 1].into_iter().filter(|ag| *ag < g.ag_count) {
            let (start, len) = (g.ag_start(ag), g.ag_len(ag));
            if len == 0
                || start + len > g.total_blocks
                || g.ag_of(start + len - 1) != ag
                || g.ag_header(ag) >= start + len
            {
                return Err(format!("geometry: group {ag} from {start}, {len} blocks"));
            }
        }
        let sys_end = g.sys_start + g.sys_blocks();
        for ino in 1..=cffs::format::LAST_SYSTEM_INO {
            let (block, offset) = g.system_inode(ino);
            if block >= sys_end || offset + INODE_SLOT_SIZE > g.block_size() {
                return Err(format!("geometry: inode {ino} at {block}, {offset}"));
            }
        }
        let blocks = super::mutate::interesting(rng, self.pool, g.total_blocks);
        let _ = g.usable_blocks(blocks);
        let counters = Counters { blocks, ..Counters::default() };
        if let Ok(smaller) = g.of_counters(&counters)
            && (smaller.total_blocks > g.total_blocks || smaller.ag_count > g.ag_count)
        {
            return Err(format!("geometry: {blocks} blocks of {} by the counters", g.total_blocks));
        }
        Ok(true)
    }

    fn log_header(&self) -> Result<bool, String> {
        let ring = (self.sb.log_blocks << self.g.block_shift) - log::LOG_HEADER_AREA;
        let Ok(h) = LogHeader::decode(&self.b, self.g.fsid, ring) else { return Ok(false) };
        same("log header", &Ok(h), &LogHeader::decode(&h.encode(), h.fsid, ring))?;
        Ok(true)
    }

    fn transaction(&self) -> Result<bool, String> {
        let ring = (self.sb.log_blocks << self.g.block_shift) - log::LOG_HEADER_AREA;
        let header = log::txn_header(&self.b, self.g.fsid, get_u64(&self.b, 16), ring);
        let Some(h) = header.filter(|h| h.len <= self.b.len() as u64) else { return Ok(false) };
        let payload = &self.b[TXN_HEADER..TXN_HEADER + h.payload as usize];
        let _ = log::txn_crc_ok(&self.b[..h.len as usize]);
        let bs = self.g.block_size();
        let Ok(records) = log::records(payload, bs) else { return Ok(false) };
        let mut again = Vec::new();
        for r in &records {
            match r {
                Record::Block { addr, init, data, sum, ranges } => {
                    let mut block = vec![0; bs];
                    let mut last = 0;
                    for (at, bytes) in ranges {
                        if *at < last || at + bytes.len() > bs {
                            return Ok(true); // overlapping ranges: possible, but nobody writes them
                        }
                        last = at + bytes.len();
                        block[*at..last].copy_from_slice(bytes);
                    }
                    let runs: Vec<(u32, u32)> =
                        ranges.iter().map(|(at, b)| (*at as u32 / 8, b.len() as u32 / 8)).collect();
                    log::put_block_with_sum(&mut again, *addr, (*init, *data, *sum), &block, &runs);
                }
                // A revocation of nothing, or of more than there can be, is not written.
                Record::Revoke { frag, len } if *len == 0 || frag.checked_add(*len).is_none() => return Ok(true),
                Record::Revoke { frag, len } => log::put_revoke(&mut again, *frag, *len),
            }
        }
        same("records", &Ok(records), &log::records(&again, bs))?;
        Ok(true)
    }

    fn block(&mut self, kind: BlockKind, rng: &mut Rng) -> Result<bool, String> {
        match kind {
            BlockKind::AgHeader => {
                let free = ag::ag_free(&self.b);
                ag::set_ag_free(&mut self.b, free);
                Ok(true)
            }
            BlockKind::DataSums => {
                let n = rng.u64(..self.g.sums_per_block());
                let at = sums::sum_offset(n);
                same("sum", &sums::get(&self.b, n), &get_u32(&self.b, at))?;
                Ok(true)
            }
            BlockKind::Bitmap => self.bitmap(rng),
            BlockKind::Counters => {
                let c = Counters::decode(&self.b);
                let mut b = vec![0; COUNT_FREE_FRAGS + COUNTERS_LEN];
                b[COUNT_FREE_FRAGS..].copy_from_slice(&c.encode());
                same("counters", &c, &Counters::decode(&b))?;
                Ok(self.g.of_counters(&c).is_ok())
            }
            BlockKind::SystemInodes | BlockKind::ExternalInodes => {
                let _ = table::used(&self.b);
                let mut any = false;
                for at in (META_HEADER_SIZE..=self.b.len() - INODE_SLOT_SIZE).step_by(INODE_SLOT_SIZE) {
                    any |= inode(&self.b[at..at + INODE_SLOT_SIZE])?;
                }
                Ok(any)
            }
            BlockKind::Dir => self.directory(rng),
            BlockKind::DirIndex => {
                if dirindex::validate(&self.b).is_err() {
                    return Ok(false);
                }
                let n = dirindex::pairs(&self.b).count();
                same("pairs", &n, &(get_u32(&self.b, dirindex::BUCKET_COUNT) as usize))?;
                for (hash, _) in dirindex::pairs(&self.b).take(64) {
                    let buckets = rng.u32(1..);
                    if dirindex::bucket_of(hash, buckets) >= buckets {
                        return Err(format!("bucket: {hash} of {buckets}"));
                    }
                }
                Ok(true)
            }
            BlockKind::ExtentNode => {
                let Ok((level, n)) = extent::node_header(&self.b) else { return Ok(false) };
                for i in 0..n {
                    let e = &self.b[extent::node_entry(i)..extent::node_entry(i + 1)];
                    if level > 0 {
                        let c = extent::Child::decode(e);
                        same("child", &e, &&c.encode()[..])?;
                    } else if (Extent::decode(e)).len > 0 {
                        same("extent", &e, &&Extent::decode(e).encode()[..])?;
                        let _ = Extent::decode(e).end();
                    }
                }
                Ok(true)
            }
            BlockKind::Locator => {
                let mut any = false;
                let ends = self.b.len() - LOCATOR_SIZE;
                for at in (META_HEADER_SIZE..=ends).step_by(LOCATOR_SIZE) {
                    if let Ok(l) = Location::decode(&self.b[at..], 20, self.b.len()) {
                        same("locator", &Ok(l), &Location::decode(&l.encode(), 20, self.b.len()))?;
                        any = true;
                    }
                }
                Ok(any)
            }
            BlockKind::TableMap => {
                let shape = TableShape::new(self.b.len(), [LOCATOR_SIZE, INODE_SLOT_SIZE][rng.usize(..2)]);
                let lblock = get_u64(&self.b, table::TABLE_LBLOCK) >> 8;
                if let Some(data) = shape.data_of_block(lblock) {
                    same("table", &shape.block_of_data(data), &lblock)?;
                    let (_, at) = shape.map_of_data(data);
                    let _ = table::map_count(&self.b, at);
                }
                Ok(true)
            }
            BlockKind::Xattr => {
                let Ok(c) = ChainBlock::decode(&self.b) else { return Ok(false) };
                let mut b = self.b.clone();
                b[XATTR_NEXT..XATTR_NEXT + 16].copy_from_slice(&c.encode());
                same("chain", &Ok(c), &ChainBlock::decode(&b))?;
                Ok(attributes(&self.b[META_HEADER_SIZE..META_HEADER_SIZE + c.used], false)?)
            }
            BlockKind::Quota => {
                let lblock = get_u64(&self.b, quota::QUOTA_LBLOCK);
                for (id, r) in quota::records(&self.b, lblock) {
                    let (block, at) = quota::place(self.b.len(), id);
                    same("quota block", &block, &lblock)?;
                    same("quota record", &&self.b[at..at + r.encode().len()], &&r.encode()[..])?;
                    same("quota", &r, &QuotaRecord::decode(&r.encode()))?;
                }
                Ok(true)
            }
        }
    }

    fn bitmap(&mut self, rng: &mut Rng) -> Result<bool, String> {
        let bits = self.g.bits_per_bitmap();
        let len = if rng.bool() { bits } else { rng.u64(..=bits) };
        let map = &mut self.b[ag::BITMAP_BITS..];
        let (mut free, mut last) = (0, None);
        for (start, n) in ag::free_runs(map, len) {
            if n == 0 || start + n > len || last.is_some_and(|l| start <= l) {
                return Err(format!("bitmap: a run of {n} from {start} of {len}, after {last:?}"));
            }
            (free, last) = (free + n, Some(start + n));
        }
        let counted = (0..len).filter(|i| map[(i / 8) as usize] >> (i % 8) & 1 == 0).count() as u64;
        same("free bits", &free, &counted)?;
        let (from, to) = (rng.u64(..=len), rng.u64(..=len));
        if from <= to {
            ag::set_bits(map, from, to, rng.bool());
        }
        Ok(true)
    }

    /// Reads a directory block, and edits it in every way that a valid one allows.
    fn directory(&mut self, rng: &mut Rng) -> Result<bool, String> {
        if dirblock::validate(&self.b).is_err() {
            return Ok(false);
        }
        let list: Vec<(usize, usize, EntryKind)> =
            dirblock::entries(&self.b).map(|e| (e.offset, e.len, e.kind)).collect();
        let end = list.last().map_or(META_HEADER_SIZE, |(at, len, _)| at + len);
        same("end of the entries", &end, &self.b.len())?;
        for e in dirblock::entries(&self.b) {
            if dirblock::entry_at(&self.b, e.offset).is_none() {
                return Err(format!("entry at {} is not found", e.offset));
            }
            if e.is_name() && dirblock::find(&self.b, e.hash, e.name).is_none() {
                return Err("name: not found where it stands".to_string());
            }
            if matches!(e.kind, EntryKind::Embedded | EntryKind::Orphan) {
                inode(&self.b[e.inode_offset()..e.offset + e.len])?;
            }
        }
        for step in 0..3 {
            let alive: Vec<(usize, EntryKind)> = dirblock::entries(&self.b).map(|e| (e.offset, e.kind)).collect();
            let (at, kind) = alive[rng.usize(..alive.len())];
            let what = edit(rng, &mut self.b, at, kind);
            dirblock::validate(&self.b)
                .map_err(|c| format!("{what}: a valid block became invalid in step {step}: {c}"))?;
        }
        Ok(true)
    }
}

/// One edit of a valid block, as the engine would make it.
fn edit(rng: &mut Rng, b: &mut [u8], at: usize, kind: EntryKind) -> &'static str {
    let e = dirblock::known_entry(b, at);
    let (room, name) = (e.inode_room(), e.name.to_vec());
    match (kind, rng.u8(..4)) {
        (EntryKind::Free, _) => {
            let inode = Inode::new(rng.u64(16..1000), FileType::Regular.mode_bits() | 0o644, 5);
            let name: Vec<u8> = (0..rng.usize(1..=255)).map(|_| rng.u8(b'0'..=b'z')).collect();
            let embed = rng.bool();
            let inode_room = if embed { inode.encoded_len() } else { 0 };
            let Some(at) = dirblock::find_space(b, dirblock::entry_len(name.len(), inode_room)) else {
                return "nothing";
            };
            let new = NewEntry {
                name: &name,
                hash: rng.u32(..),
                ino: inode.ino,
                file_type: FileType::Regular,
                inode: embed.then_some(&inode),
                inode_room,
            };
            dirblock::insert(&mut Plain(b), at, &new);
            "insert"
        }
        (EntryKind::Embedded, 0) => {
            dirblock::make_orphan(&mut Plain(b), at);
            "make_orphan"
        }
        (EntryKind::Embedded, 1) => {
            dirblock::make_link(&mut Plain(b), at);
            "make_link"
        }
        (EntryKind::Link, 0) => {
            dirblock::set_link(&mut Plain(b), at, rng.u64(16..99), FileType::Socket);
            "set_link"
        }
        (EntryKind::Link, 1) if room >= INODE_CORE_SIZE + 64 && !name.is_empty() => {
            let (ino, file_type) = (e.ino, e.file_type.unwrap_or(FileType::Regular));
            let inode = Inode::new(ino, file_type.mode_bits(), 7);
            dirblock::make_embedded(&mut Plain(b), at, &inode);
            "make_embedded"
        }
        (_, 2) => {
            let most = dirblock::grown_max(b, at);
            dirblock::grow(&mut Plain(b), at, rng.usize(..=most) / 8 * 8);
            "grow"
        }
        _ => {
            dirblock::remove(&mut Plain(b), at);
            "remove"
        }
    }
}

/// Decodes an inode and what is in it. True if it is one.
fn inode(b: &[u8]) -> Result<bool, String> {
    let Ok(inode) = Inode::decode(b) else { return Ok(false) };
    if inode.encoded_len() > b.len() {
        return Err(format!("inode: {} bytes decoded from {}", inode.encoded_len(), b.len()));
    }
    let mut again = vec![0; inode.encoded_len()];
    inode.encode(&mut again);
    same("inode", &Ok(inode.clone()), &Inode::decode(&again))?;
    let _ = (inode.file_type(), inode.root_capacity(), inode.data_room());
    attributes(&inode.xattrs, true)?;
    Ok(true)
}

/// Decodes a list of attributes, and the access control lists in it. True if it is one.
fn attributes(list: &[u8], padded: bool) -> Result<bool, String> {
    let mut all = Vec::new();
    if decode_list(list, padded, &mut all).is_err() {
        return Ok(false);
    }
    let mut again = Vec::new();
    all.iter().for_each(|x| x.encode(&mut again));
    let mut back = Vec::new();
    decode_list(&again, false, &mut back).map_err(|c| c.0)?;
    same("attributes", &all, &back)?;
    for x in all {
        same("name", &Namespace::split(&x.full_name()), &Some((x.namespace, &x.name[..])))?;
        if let Ok(Some(acl)) = Acl::from_xattr(&x.value) {
            same(
                "access control list",
                &Ok(Some(acl.clone())),
                &Acl::from_xattr(&acl.to_xattr()).map_err(|e| e.to_string()),
            )?;
        }
    }
    Ok(true)
}
