//! Disk profiles: the papers' disks, and today's.
//!
//! Where a source gives no figure, the one chosen is named in the comment. Data sheets do not give command overheads:
//! 0.3 ms are assumed for the disks of the 1990s, and 0.1 ms for today's.

use crate::flat_cost::{self, EraseBlocks, FlatCost};
use crate::layout::{Layout, Zone};
use crate::mechanical::{Mechanical, Spec};
use crate::model::Model;
use crate::request::{Ns, ms};
use crate::seek::SeekCurve;
use crate::units::UnitSpec;
use serde::Serialize;

/// Data sheet of a mechanical disk.
#[derive(Clone, Debug, Serialize)]
pub struct DataSheet {
    /// Cylinders.
    pub cylinders: u64,
    /// Recording surfaces.
    pub surfaces: u64,
    /// Sectors to a track in the outermost zone.
    pub track_longest: u64,
    /// Sectors to a track in the innermost zone.
    pub track_shortest: u64,
    /// Rotations per minute.
    pub rpm: u64,
    /// Single-cylinder, average and maximum seek for reads, in milliseconds.
    pub seek: [f64; 3],
    /// Additional settle time of writes after a seek, in milliseconds.
    pub write_settle: f64,
    /// Head switch, in milliseconds.
    pub head_switch: f64,
    /// Bus, in MB/s.
    pub bus: u64,
    /// Track buffer for reading ahead, in KiB.
    pub buffer: u64,
    /// Write cache in KiB.
    pub write_cache: u64,
    /// Command overhead, in milliseconds.
    pub overhead: f64,
    /// Largest request in KiB.
    pub request_max: u64,
    /// Bands of shingled tracks.
    pub bands: Option<UnitSpec>,
}

/// The figures of a profile.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A mechanical disk.
    Mechanical(DataSheet),
    /// A device whose requests cost the same wherever they go.
    FlatCost(flat_cost::Spec),
}

/// A named disk.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// What disk it is.
    pub about: &'static str,
    /// Where the figures are from.
    pub source: &'static str,
    /// The figures.
    pub kind: Kind,
}

impl Profile {
    /// An idle disk with this profile.
    pub fn model(&self) -> Model {
        match &self.kind {
            Kind::Mechanical(sheet) => Model::Mechanical(Box::new(sheet.disk(false))),
            Kind::FlatCost(spec) => Model::FlatCost(Box::new(FlatCost::new(spec.clone()))),
        }
    }
}

impl DataSheet {
    /// An idle disk with this data sheet. `zero_latency`: see [`Spec::zero_latency`].
    pub fn disk(&self, zero_latency: bool) -> Mechanical {
        let rotation: Ns = 60_000_000_000 / self.rpm;
        // Skew: the next track begins as soon as the head can be there.
        let share = |time: f64| ms(time) as f64 / rotation as f64 + 1.0 / self.track_shortest as f64;
        let zones: Vec<Zone> = Layout::even_zones(self.cylinders, self.track_longest, self.track_shortest, 8);
        let layout = Layout::new(self.surfaces, &zones, share(self.head_switch), share(self.seek[0]));
        let curve = SeekCurve::fit(self.cylinders, self.seek[0], self.seek[1], self.seek[2]);
        let spec = Spec {
            heads: self.surfaces,
            rotation,
            head_switch: ms(self.head_switch),
            write_settle: ms(self.write_settle),
            overhead: ms(self.overhead),
            bus: self.bus * 1_000_000,
            zero_latency,
            read_ahead: self.buffer << 10,
            write_cache: self.write_cache << 10,
            request_max: self.request_max << 10,
            bands: self.bands,
        };
        Mechanical::new(spec, layout, curve)
    }
}

/// All profiles.
pub fn all() -> Vec<Profile> {
    [disks_of_1997(), other_disks(), flat_cost_devices(), rewritten_in_units()].concat()
}

/// A mechanical disk with what most of the data sheets have in common.
fn unspecified() -> DataSheet {
    DataSheet {
        cylinders: 0,
        surfaces: 0,
        track_longest: 0,
        track_shortest: 0,
        rpm: 7200,
        seek: [1.0, 8.0, 18.0],
        write_settle: 0.0,
        head_switch: 0.9,
        bus: 10,
        buffer: 512,
        write_cache: 0,
        overhead: 0.3,
        request_max: 128,
        bands: None,
    }
}

fn mechanical(name: &'static str, about: &'static str, source: &'static str, sheet: DataSheet) -> Profile {
    Profile { name, about, source, kind: Kind::Mechanical(sheet) }
}

fn flat_cost(name: &'static str, about: &'static str, source: &'static str, spec: flat_cost::Spec) -> Profile {
    Profile { name, about, source, kind: Kind::FlatCost(spec) }
}

/// The disks of Ganger and Kaashoek 1997.
fn disks_of_1997() -> Vec<Profile> {
    vec![
        mechanical(
            "st31200",
            "Seagate ST31200, 1 GB, the disk of the 1997 measurements",
            "Ganger and Kaashoek 1997, table 2; head switch, buffer (256 KiB) and bus (10 MB/s) assumed",
            DataSheet {
                cylinders: 2700,
                surfaces: 9,
                track_longest: 84,
                track_shortest: 84,
                rpm: 5400,
                seek: [1.0, 9.0, 22.0],
                write_settle: 1.5,
                buffer: 256,
                ..unspecified()
            },
        ),
        mechanical(
            "hp-c3653a",
            "Hewlett-Packard C3653a, 8.7 GB",
            "Ganger and Kaashoek 1997, table 1; one-cylinder seek and head switch, there \"< 1 ms\", taken as 0.9 ms",
            DataSheet {
                cylinders: 5371,
                surfaces: 20,
                track_longest: 173,
                track_shortest: 124,
                seek: [0.9, 8.7, 16.5],
                write_settle: 0.8,
                bus: 20,
                ..unspecified()
            },
        ),
        mechanical(
            "barracuda",
            "Seagate Barracuda, 9.1 GB",
            "Ganger and Kaashoek 1997, table 1; head switch 0.6 ms assumed",
            DataSheet {
                cylinders: 5333,
                surfaces: 20,
                track_longest: 239,
                track_shortest: 153,
                seek: [0.6, 8.0, 19.0],
                write_settle: 1.5,
                head_switch: 0.6,
                bus: 20,
                ..unspecified()
            },
        ),
        mechanical(
            "atlas2",
            "Quantum Atlas II, 9.1 GB",
            "Ganger and Kaashoek 1997, table 1; head switch 0.9 ms assumed",
            DataSheet {
                cylinders: 5964,
                surfaces: 20,
                track_longest: 180,
                track_shortest: 108,
                seek: [1.0, 7.9, 18.0],
                bus: 20,
                ..unspecified()
            },
        ),
    ]
}

/// A disk of the 1995 measurements, and one of today.
fn other_disks() -> Vec<Profile> {
    vec![
        mechanical(
            "dsp3105",
            "DEC DSP3105, 1 GB, of the 1995 measurements",
            "Seltzer et al. 1995, table 1; one-cylinder seek 1 ms, full stroke 22 ms, head switch assumed",
            DataSheet {
                cylinders: 2568,
                surfaces: 14,
                track_longest: 57,
                track_shortest: 57,
                rpm: 5400,
                seek: [1.0, 9.5, 22.0],
                write_settle: 1.0,
                buffer: 256,
                request_max: 56,
                ..unspecified()
            },
        ),
        mechanical(
            "hdd-2026",
            "7200 rpm drive of today, 4 TB, 250 MB/s in the outer zone, write cache on",
            "7200 rpm drives' manuals: seek 8.5 ms read and 9.5 ms write (Hitachi 7K1000.C); 250 MB/s sustained, 4.16 ms \
             latency, 256 MB cache (Seagate Exos class); cylinders, single-cylinder (0.5 ms) and full-stroke (18 ms) seek assumed",
            drive_of_today(),
        ),
    ]
}

/// The data sheet of `hdd-2026`.
fn drive_of_today() -> DataSheet {
    DataSheet {
        cylinders: 430_000,
        surfaces: 6,
        track_longest: 4300,
        track_shortest: 2150,
        seek: [0.5, 8.5, 18.0],
        write_settle: 1.0,
        head_switch: 0.5,
        bus: 600,
        buffer: 8 << 10,
        write_cache: 128 << 10,
        overhead: 0.1,
        request_max: 1 << 10,
        ..unspecified()
    }
}

/// Media on which only writing on is cheap.
fn rewritten_in_units() -> Vec<Profile> {
    vec![
        mechanical(
            "smr",
            "shingled drive: that of hdd-2026 with bands of 32 MiB, a small write cache, and no media cache",
            "Aghayev and Desnoyers, Skylight (FAST 2015): bands of some tens of MiB that are read and rewritten as a whole; mechanics of \
             hdd-2026; the first band not shingled, 8 bands in the making at once and a write cache of 8 MiB assumed. The media cache in which \
             drives collect random writes is left out: it postpones the rewriting of bands",
            DataSheet {
                write_cache: 8 << 10,
                bands: Some(UnitSpec { plain: 32 << 20, unit: 32 << 20, open: 8 }),
                ..drive_of_today()
            },
        ),
        flat_cost(
            "flash",
            "flash card with a simple controller: blocks of 4 MiB that are rewritten as a whole, five at a time",
            "Linaro's flash card survey, and Bergmann, Optimizing Linux with cheap flash drives (LWN, 2011): allocation units of 4 MiB, a \
             handful of them open, writing on within one; speed class 10 and the reads of a UHS-I card: 20 MB/s written, 80 MB/s read; erasing \
             a block 2 ms, latency 0.5 and 0.8 ms assumed; the first unit, where file systems of cards have their tables, not mapped in blocks",
            flat_cost::Spec {
                capacity: 64 << 30,
                read_latency: ms(0.5),
                write_latency: ms(0.8),
                flush_latency: ms(1.0),
                read_bandwidth: 80_000_000,
                write_bandwidth: 20_000_000,
                requests_per_second: 100_000,
                queue_depth: 1,
                request_max: 512 << 10,
                blocks: Some(EraseBlocks {
                    units: UnitSpec { plain: 4 << 20, unit: 4 << 20, open: 5 },
                    erase: ms(2.0),
                    // Read, and then written.
                    copy_bandwidth: 16_000_000,
                }),
            },
        ),
    ]
}

/// Devices without an arm.
fn flat_cost_devices() -> Vec<Profile> {
    vec![
        flat_cost(
            "volume-1ms",
            "network volume: 1 ms a request, 3,000 requests/s, 125 MB/s",
            "baseline of general-purpose cloud volumes: 3,000 IOPS, 125 MiB/s, \"single-digit millisecond\" latency (AWS EBS gp3); 1 ms and \
             256 KiB requests taken",
            flat_cost::Spec {
                capacity: 1 << 40,
                read_latency: ms(1.0),
                write_latency: ms(1.0),
                flush_latency: ms(1.0),
                read_bandwidth: 125_000_000,
                write_bandwidth: 125_000_000,
                requests_per_second: 3000,
                queue_depth: 32,
                request_max: 256 << 10,
                blocks: None,
            },
        ),
        flat_cost(
            "sd-card",
            "SD card of application class A1",
            "SD Association, application class A1: 1,500 reads/s and 500 writes/s of 4 KiB, 10 MB/s sustained writes; reads at the 90 MB/s of a \
             UHS-I card",
            flat_cost::Spec {
                capacity: 64 << 30,
                read_latency: ms(0.62),
                write_latency: ms(1.59),
                flush_latency: ms(1.0),
                read_bandwidth: 90_000_000,
                write_bandwidth: 10_000_000,
                requests_per_second: 100_000,
                queue_depth: 1,
                request_max: 512 << 10,
                blocks: None,
            },
        ),
        flat_cost(
            "nvme",
            "NVMe SSD",
            "order of magnitude of PCIe 3.0 client drives' data sheets: 500,000 requests/s, 3.5 GB/s read, 3 GB/s write; 80 and 20 microseconds",
            flat_cost::Spec {
                capacity: 1 << 40,
                read_latency: ms(0.08),
                write_latency: ms(0.02),
                flush_latency: ms(0.5),
                read_bandwidth: 3_500_000_000,
                write_bandwidth: 3_000_000_000,
                requests_per_second: 500_000,
                queue_depth: 256,
                request_max: 1 << 20,
                blocks: None,
            },
        ),
    ]
}

/// The profile with this name.
pub fn find(name: &str) -> Option<Profile> {
    all().into_iter().find(|p| p.name == name)
}
