//! Disk geometry: zones of cylinders with equally long tracks, and skew. Without skew the next sector would just have
//! passed after a head or cylinder switch.

/// A zone: cylinders with equally long tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Number of cylinders.
    pub cylinders: u64,
    /// Sectors to a track.
    pub track: u64,
}

/// The position of a sector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Cylinder, 0 is the outermost.
    pub cylinder: u64,
    /// Head.
    pub head: u64,
    /// Sector in the track, in logical order.
    pub sector: u64,
    /// Sectors of this track.
    pub track: u64,
    /// Angle of this sector's start, as a share of a rotation, 0 to 1.
    pub angle: f64,
}

/// The geometry of a disk.
#[derive(Clone, Debug)]
pub struct Layout {
    heads: u64,
    /// First sector, first cylinder, zone.
    zones: Vec<(u64, u64, Zone)>,
    sectors: u64,
    cylinders: u64,
    /// Head skew: how far the first sector of a track lies behind that of the track before it, as a share of a
    /// rotation.
    head_skew: f64,
    cylinder_skew: f64,
}

impl Layout {
    /// A disk with these zones, the outermost first. The skews are shares of a rotation.
    pub fn new(heads: u64, zones: &[Zone], head_skew: f64, cylinder_skew: f64) -> Layout {
        let (mut sectors, mut cylinders) = (0, 0);
        let mut list = Vec::new();
        for zone in zones {
            list.push((sectors, cylinders, *zone));
            sectors += zone.cylinders * heads * zone.track;
            cylinders += zone.cylinders;
        }
        Layout { heads, zones: list, sectors, cylinders, head_skew, cylinder_skew }
    }

    /// Zones with equal numbers of cylinders, and tracks from `longest` down to `shortest` sectors.
    pub fn even_zones(cylinders: u64, longest: u64, shortest: u64, zones: u64) -> Vec<Zone> {
        let zones = if longest == shortest { 1 } else { zones };
        (0..zones)
            .map(|z| Zone {
                cylinders: cylinders * (z + 1) / zones - cylinders * z / zones,
                track: longest - (longest - shortest) * z / (zones - 1).max(1),
            })
            .collect()
    }

    /// Sectors of the whole disk.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Cylinders of the whole disk.
    pub fn cylinders(&self) -> u64 {
        self.cylinders
    }

    /// The position of a sector. Sectors beyond the end are taken for the last one.
    pub fn place(&self, sector: u64) -> Place {
        let sector = sector.min(self.sectors - 1);
        let at = self.zones.partition_point(|(first, _, _)| *first <= sector) - 1;
        let (first, cylinder, zone) = self.zones[at];
        let within = sector - first;
        let track = within / zone.track;
        let (cylinder, head) = (cylinder + track / self.heads, track % self.heads);
        let in_track = within % zone.track;
        // Skews add up from the first track of the disk on.
        let heads_before = cylinder * (self.heads - 1) + head;
        let skew = heads_before as f64 * self.head_skew + cylinder as f64 * self.cylinder_skew;
        let angle = (skew + in_track as f64 / zone.track as f64).fract();
        Place { cylinder, head, sector: in_track, track: zone.track, angle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_fill_tracks_then_cylinders_then_zones() {
        let l = Layout::new(2, &[Zone { cylinders: 2, track: 10 }, Zone { cylinders: 1, track: 8 }], 0.1, 0.25);
        assert_eq!((l.sectors(), l.cylinders()), (56, 3));
        let at = |s| {
            let p = l.place(s);
            (p.cylinder, p.head, p.sector, p.track)
        };
        assert_eq!(at(0), (0, 0, 0, 10));
        assert_eq!(at(9), (0, 0, 9, 10));
        assert_eq!(at(10), (0, 1, 0, 10));
        assert_eq!(at(20), (1, 0, 0, 10));
        assert_eq!(at(40), (2, 0, 0, 8));
        assert_eq!(at(55), (2, 1, 7, 8));
        assert!((l.place(10).angle - 0.1).abs() < 1e-9);
        assert!((l.place(20).angle - 0.35).abs() < 1e-9, "one head and one cylinder further");
        assert_eq!(Layout::even_zones(100, 200, 100, 5).iter().map(|z| z.cylinders).sum::<u64>(), 100);
        assert_eq!(Layout::even_zones(7, 84, 84, 5), [Zone { cylinders: 7, track: 84 }]);
    }
}
