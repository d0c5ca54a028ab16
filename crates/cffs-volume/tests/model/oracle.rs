//! What a device may contain.

use crate::disk::SECTOR;

/// Contents of a sector: the number of the write that wrote it.
pub type Tag = u64;

pub fn fill(sector: &mut [u8], tag: Tag) {
    sector.chunks_mut(8).for_each(|b| b.copy_from_slice(&tag.to_le_bytes()));
}

/// The tag of a sector that is whole.
pub fn tag(sector: &[u8]) -> Option<Tag> {
    let first: [u8; 8] = sector[..8].try_into().unwrap();
    sector.chunks(8).all(|b| b == first).then(|| Tag::from_le_bytes(first))
}

#[derive(Clone)]
struct Sector {
    /// What reads must find; `None` until the first read after a crash or a failed write.
    current: Option<Tag>,
    /// What a crash may leave.
    possible: Vec<Tag>,
}

/// For each sector what may be read, now and after a crash.
#[derive(Clone)]
pub struct Oracle {
    sectors: Vec<Sector>,
}

impl Oracle {
    /// All sectors have tag 0, durably.
    pub fn new(bytes: u64) -> Self {
        Oracle { sectors: vec![Sector { current: Some(0), possible: vec![0] }; (bytes / SECTOR) as usize] }
    }

    pub fn sectors(&self) -> usize {
        self.sectors.len()
    }

    pub fn written(&mut self, first: usize, tags: &[Tag], ok: bool) {
        for (s, tag) in self.sectors[first..].iter_mut().zip(tags) {
            s.current = ok.then_some(*tag);
            if !s.possible.contains(tag) {
                s.possible.push(*tag);
            }
        }
    }

    pub fn read(&mut self, first: usize, bytes: &[u8]) {
        for (i, sector) in bytes.chunks(SECTOR as usize).enumerate() {
            let s = &mut self.sectors[first + i];
            let Some(found) = tag(sector) else { panic!("sector {} has no whole tag: {:?}", first + i, &sector[..16]) };
            match s.current {
                Some(tag) => assert_eq!(found, tag, "sector {}", first + i),
                None => assert!(s.possible.contains(&found), "sector {}: {found} of {:?}", first + i, s.possible),
            }
            s.current = Some(found);
        }
    }

    /// Everything that is known became durable.
    pub fn flushed(&mut self) {
        for s in &mut self.sectors {
            if let Some(tag) = s.current {
                s.possible = vec![tag];
            }
        }
    }

    pub fn crashed(&mut self) {
        for s in &mut self.sectors {
            s.current = None;
        }
    }
}
