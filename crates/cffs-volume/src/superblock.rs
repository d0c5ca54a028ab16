//! The superblock of a member as bytes and as a value. `docs/format-volume.md` gives the bytes.

use std::fmt;
use std::str::FromStr;

/// Bytes of a superblock, and of a copy of the bitmap.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes at which a member has its two superblocks.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Where a member of a mirror has the two copies of its bitmap.
pub(crate) const BITMAP_OFFSETS: [u64; 2] = [128 << 10, 192 << 10];
/// Byte at which the data of a new member begins.
pub const DATA_OFFSET: u64 = 1 << 20;
/// Data lies behind the copies of the bitmap, whatever the sector size.
const DATA_OFFSET_MIN: u64 = 256 << 10;
/// Most members of a volume.
pub const MEMBERS_MAX: usize = 64;
/// Numbers that are counted stay below this, so that adding to them never overflows. Sizes too.
pub(crate) const COUNTER_MAX: u64 = 1 << 62;
/// Stripe units are multiples of this.
pub(crate) const UNIT_STEP: u64 = 4096;
/// Longest stripe unit, in bytes.
pub(crate) const UNIT_MAX: u64 = 1 << 30;
/// Regions that a copy of the bitmap has room for.
pub(crate) const REGIONS_MAX: u64 = ((BLOCK_BYTES - 64) * 8) as u64;
/// Shortest region, in bytes.
pub(crate) const REGION_MIN: u64 = 64 << 10;

const MAGIC: &[u8; 8] = b"cffsVOL\x01";
const VERSION: u32 = 1;
const TABLE: usize = 128;
const ENTRY_BYTES: usize = 40;

/// Identifies a volume or a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl FromStr for Uuid {
    type Err = String;

    /// As it is displayed; dashes may be left out.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a uuid: write it as 01234567-89ab-cdef-0123-456789abcdef");
        let digits: Vec<u8> = text
            .chars()
            .filter(|c| *c != '-')
            .map(|c| c.to_digit(16).map(|d| d as u8))
            .collect::<Option<_>>()
            .ok_or_else(bad)?;
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair.iter().fold(0, |n, d| n << 4 | d)).collect();
        if digits.len() != 32 {
            return Err(bad());
        }
        bytes.try_into().map(Uuid).map_err(|_| bad())
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let dash = if [4, 6, 8, 10].contains(&i) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How the members make a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One member after the other.
    Concat,
    /// Stripe units by turns.
    Stripe,
    /// Each member has everything.
    Mirror,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Concat => "concatenation",
            Kind::Stripe => "stripe",
            Kind::Mirror => "mirror",
        })
    }
}

/// What every member knows of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) uuid: Uuid,
    /// Bytes of data.
    pub(crate) data_len: u64,
    /// Whether it has all data. Only a mirror has members that do not.
    pub(crate) in_sync: bool,
    /// Another one is put in its place: it goes when that has everything.
    pub(crate) outgoing: bool,
    /// Of a member of a mirror that is in sync: the last generation that it is known to have taken. Of one that is out of date: the same, from when it was
    /// in sync; 0 if it never was.
    pub(crate) last_generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) volume: Uuid,
    pub(crate) kind: Kind,
    /// Which entry of the table is this member.
    pub(crate) index: usize,
    /// Rises with every change of who belongs to the volume and is in sync.
    pub(crate) generation: u64,
    /// Rises with every superblock of this member.
    pub(crate) sequence: u64,
    /// First byte of data.
    pub(crate) data_offset: u64,
    /// Bytes of a stripe unit; 0 where there is none.
    pub(crate) unit: u64,
    /// Bytes of a region of the bitmap; 0 where there is none.
    pub(crate) region: u64,
    /// When the volume was made, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) members: Vec<Entry>,
}

/// Bytes of the volume that such members make. `None` if they make none.
pub(crate) fn volume_len(kind: Kind, unit: u64, region: u64, members: &[Entry]) -> Option<u64> {
    let first = members.first()?.data_len;
    let block = BLOCK_BYTES as u64;
    if members.iter().any(|m| m.data_len == 0 || !m.data_len.is_multiple_of(block) || m.data_len >= COUNTER_MAX) {
        return None;
    }
    let equal = members.iter().all(|m| m.data_len == first);
    let sum = members.iter().try_fold(0u64, |sum, m| sum.checked_add(m.data_len)).filter(|n| *n < COUNTER_MAX);
    let in_sync = members.iter().all(|m| m.in_sync);
    match kind {
        Kind::Concat => sum.filter(|_| in_sync && unit == 0 && region == 0),
        Kind::Stripe => {
            let fits =
                (UNIT_STEP..=UNIT_MAX).contains(&unit) && unit.is_multiple_of(UNIT_STEP) && first.is_multiple_of(unit);
            sum.filter(|_| in_sync && equal && fits && region == 0)
        }
        Kind::Mirror => {
            let fits = region.is_power_of_two() && region >= REGION_MIN && first.div_ceil(region) <= REGIONS_MAX;
            (equal && fits && unit == 0 && members.iter().any(|m| m.in_sync)).then_some(first)
        }
    }
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

pub(crate) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes.get(at + i).copied().unwrap_or(0))
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(bytes, at))
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(bytes, at))
}

/// CRC32C of a block whose bytes 8 to 11, where the checksum stands, count as zeros.
pub(crate) fn checksum(block: &[u8]) -> u32 {
    let mut copy = block.to_vec();
    copy[8..12].fill(0);
    crc_fast::crc32_iscsi(&copy)
}

/// Whether a block begins like a superblock, whatever comes then.
pub(crate) fn has_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The volume that a superblock belongs to; `None` if these [`BLOCK_BYTES`] are none that is whole.
pub fn volume_of_block(block: &[u8]) -> Option<Uuid> {
    Superblock::decode(block).ok().map(|sb| sb.volume)
}

/// Whether a device that begins so is, or was, a member of a volume.
pub fn begins_as_member(bytes: &[u8]) -> bool {
    has_magic(bytes)
}

impl Superblock {
    /// The entry of the member that has this superblock.
    pub(crate) fn own(&self) -> &Entry {
        &self.members[self.index]
    }

    /// The entry of a member.
    pub(crate) fn entry(&self, uuid: Uuid) -> Option<&Entry> {
        self.members.iter().find(|m| m.uuid == uuid)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; BLOCK_BYTES];
        let kind: u32 = match self.kind {
            Kind::Concat => 1,
            Kind::Stripe => 2,
            Kind::Mirror => 3,
        };
        put(&mut b, 0, MAGIC);
        put(&mut b, 12, &VERSION.to_le_bytes());
        put(&mut b, 16, &self.volume.0);
        put(&mut b, 32, &self.own().uuid.0);
        put(&mut b, 48, &kind.to_le_bytes());
        put(&mut b, 52, &(self.index as u32).to_le_bytes());
        put(&mut b, 56, &(self.members.len() as u32).to_le_bytes());
        let numbers = [self.generation, self.sequence, self.data_offset, self.unit, self.region, self.created];
        for (i, n) in numbers.iter().enumerate() {
            put(&mut b, 64 + i * 8, &n.to_le_bytes());
        }
        for (i, m) in self.members.iter().enumerate() {
            let at = TABLE + i * ENTRY_BYTES;
            put(&mut b, at, &m.uuid.0);
            put(&mut b, at + 16, &m.data_len.to_le_bytes());
            put(&mut b, at + 24, &m.last_generation.to_le_bytes());
            put(&mut b, at + 32, &u32::from(m.in_sync).to_le_bytes());
            put(&mut b, at + 36, &u32::from(m.outgoing).to_le_bytes());
        }
        let sum = checksum(&b);
        put(&mut b, 8, &sum.to_le_bytes());
        b
    }

    /// What the bytes say, or what is wrong with them.
    pub(crate) fn decode(b: &[u8]) -> Result<Self, String> {
        if b.len() != BLOCK_BYTES || !has_magic(b) {
            return Err("there is no superblock of a volume".into());
        }
        if get_u32(b, 8) != checksum(b) {
            return Err("the superblock has a wrong checksum".into());
        }
        let version = get_u32(b, 12);
        if version != VERSION {
            return Err(format!("the superblock has version {version}, this program knows version {VERSION}"));
        }
        let kind = match get_u32(b, 48) {
            1 => Kind::Concat,
            2 => Kind::Stripe,
            3 => Kind::Mirror,
            n => return Err(format!("the superblock has the unknown kind {n}")),
        };
        let (index, count) = (get_u32(b, 52) as usize, get_u32(b, 56) as usize);
        if count == 0 || count > MEMBERS_MAX || index >= count {
            return Err(format!("the superblock is that of member {index} of {count}, which cannot be"));
        }
        let member = |i: usize| {
            let at = TABLE + i * ENTRY_BYTES;
            Entry {
                uuid: Uuid(get(b, at)),
                data_len: get_u64(b, at + 16),
                last_generation: get_u64(b, at + 24),
                in_sync: get_u32(b, at + 32) == 1,
                outgoing: get_u32(b, at + 36) == 1,
            }
        };
        let sb = Superblock {
            volume: Uuid(get(b, 16)),
            kind,
            index,
            generation: get_u64(b, 64),
            sequence: get_u64(b, 72),
            data_offset: get_u64(b, 80),
            unit: get_u64(b, 88),
            region: get_u64(b, 96),
            created: get_u64(b, 104),
            members: (0..count).map(member).collect(),
        };
        let distinct = sb.members.iter().enumerate().all(|(i, m)| sb.members[..i].iter().all(|o| o.uuid != m.uuid));
        let counters = [sb.generation, sb.sequence, sb.data_offset, sb.created];
        let counters = counters.iter().chain(sb.members.iter().map(|m| &m.last_generation)).all(|n| *n < COUNTER_MAX);
        let offset = sb.data_offset >= DATA_OFFSET_MIN && sb.data_offset.is_multiple_of(BLOCK_BYTES as u64);
        let own = Uuid(get(b, 32)) == sb.own().uuid;
        if !distinct || !counters || !offset || !own || volume_len(kind, sb.unit, sb.region, &sb.members).is_none() {
            return Err("the superblock has a good checksum, and values that cannot be".into());
        }
        Ok(sb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn example() -> Superblock {
        let entry = |n: u8| Entry {
            uuid: Uuid([n; 16]),
            data_len: 8 << 20,
            in_sync: n != 3,
            outgoing: n == 2,
            last_generation: n.into(),
        };
        Superblock {
            volume: Uuid([9; 16]),
            kind: Kind::Mirror,
            index: 1,
            generation: 7,
            sequence: 12,
            data_offset: DATA_OFFSET,
            unit: 0,
            region: 1 << 20,
            created: 1_800_000_000,
            members: (1..=3).map(entry).collect(),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let sb = example();
        assert_eq!(Superblock::decode(&sb.encode()).unwrap(), sb);
        let mut stripe = Superblock { kind: Kind::Stripe, unit: 1 << 20, region: 0, ..sb };
        stripe.members[2].in_sync = true;
        assert_eq!(Superblock::decode(&stripe.encode()).unwrap(), stripe);
        assert_eq!(volume_len(Kind::Stripe, 1 << 20, 0, &stripe.members), Some(24 << 20));
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let good = example().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        }
    }

    /// With a checksum that fits, whatever the bytes say: an error or values that can be.
    #[test]
    fn any_values_are_refused_or_possible() {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut b = example().encode();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(12..260);
                let byte = rng.u8(..);
                b[at] = *rng.choice([0, 1, 0xff, byte].iter()).unwrap_or(&0);
            }
            let sum = checksum(&b);
            b[8..12].copy_from_slice(&sum.to_le_bytes());
            if let Ok(sb) = Superblock::decode(&b) {
                accepted += 1;
                assert!(sb.members.len() <= MEMBERS_MAX && sb.index < sb.members.len());
                assert!(volume_len(sb.kind, sb.unit, sb.region, &sb.members).is_some());
            }
        }
        assert!(accepted > 100);
    }

    #[test]
    fn a_uuid_is_shown_as_everywhere() {
        let uuid = Uuid(std::array::from_fn(|i| i as u8));
        assert_eq!(uuid.to_string(), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_eq!("000102030405060708090a0b0c0d0e0f".parse(), Ok(uuid));
        for bad in ["", "00010203-0405-0607-0809-0a0b0c0d0e0", "00010203-0405-0607-0809-0a0b0c0d0e0x"] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }
}
