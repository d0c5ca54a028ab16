//! The models against their data sheets, measured as a benchmark program would measure a disk: by requests and the time
//! they take.

use cffs_disk::measure::{
    medium, random_access, requests_per_second, rotation, sequential, service, service_by_data_sheet, without_overheads,
};
use cffs_disk::profiles::{DataSheet, Kind, all, find};
use cffs_disk::{Model, Request};

fn sheets() -> Vec<(&'static str, DataSheet)> {
    let sheet = |kind| match kind {
        Kind::Mechanical(sheet) => Some(sheet),
        Kind::FlatCost(_) => None,
    };
    all().into_iter().filter_map(|p| Some((p.name, sheet(p.kind)?))).collect()
}

#[test]
fn random_access_is_average_seek_and_half_a_rotation() {
    for (name, sheet) in sheets() {
        let half_turn = 30_000.0 / sheet.rpm as f64;
        for (write, settle) in [(false, 0.0), (true, sheet.write_settle)] {
            let seen = random_access(&mut without_overheads(&sheet, false), write, 20_000);
            let expected = sheet.seek[1] + settle + half_turn;
            // Zones make requests fall on outer cylinders more often, so that seeks are a little shorter.
            assert!((0.93..1.02).contains(&(seen / expected)), "{name}: {seen:.2} ms, by the data sheet {expected:.2}");
        }
    }
}

#[test]
fn a_rotation_takes_what_the_speed_says() {
    for (name, sheet) in sheets() {
        let seen = rotation(&mut without_overheads(&sheet, false));
        let turn = 60_000_000_000 / sheet.rpm;
        assert!(seen.abs_diff(turn) < 1000, "{name}: the same sector comes again after {seen} ns");
    }
}

#[test]
fn sequential_reads_have_the_bandwidth_of_the_medium() {
    for (name, sheet) in sheets() {
        for (at, track) in [(0.0, sheet.track_longest), (0.999, sheet.track_shortest)] {
            let medium = medium(&sheet, track);
            let mut model = Model::Mechanical(Box::new(sheet.disk(false)));
            let start = (model.capacity() as f64 * at) as u64 / 4096 * 4096;
            // To the last cylinder, where there is nothing beyond to read.
            let bytes = (16 << 20).min((model.capacity() - start) / 65_536 * 65_536);
            let seen = sequential(&mut model, start, bytes, 65_536, false);
            assert!(
                (0.93..1.03).contains(&(seen / medium)),
                "{name} at {at}: {seen:.2} MB/s, by the data sheet {medium:.2} MB/s"
            );
        }
    }
    // What was said of today's drive.
    let mut model = find("hdd-2026").unwrap().model();
    let seen = sequential(&mut model, 0, 256 << 20, 1 << 20, false);
    assert!((235.0..265.0).contains(&seen), "{seen} MB/s");
}

#[test]
fn without_read_ahead_a_rotation_is_lost_between_requests() {
    let (_, sheet) = sheets().remove(0);
    let with = sequential(&mut Model::Mechanical(Box::new(sheet.disk(false))), 0, 4 << 20, 8192, false);
    let without = DataSheet { buffer: 0, ..sheet };
    let without = sequential(&mut Model::Mechanical(Box::new(without.disk(false))), 0, 4 << 20, 8192, false);
    assert!(without < 0.8 && with > 3.0, "{without} and {with} MB/s");
}

#[test]
fn larger_requests_cost_little_more_as_figure_2_of_1997_has_it() {
    for name in ["hp-c3653a", "barracuda", "atlas2"] {
        let Some(Kind::Mechanical(sheet)) = find(name).map(|p| p.kind) else { panic!("{name}") };
        for seek in [sheet.seek[0], sheet.seek[1]] {
            let at = |kib, immediate| service(&sheet, kib, seek, immediate);
            let formula = service_by_data_sheet(&sheet, 8, seek);
            assert!((at(8, false) / formula - 1.0).abs() < 0.06, "{name}: {} and {formula} ms", at(8, false));
            // The paper: under 10%, also with the shortest seek. That seek alone makes 16 sectors more than 10% on two of
            // its three disks, by its own table; with the average seek it holds on all.
            let limit = if seek == sheet.seek[1] { 1.10 } else { 1.20 };
            assert!(at(16, false) / at(8, false) < limit, "{name}, {seek} ms: {}", at(16, false) / at(8, false));
            assert!(at(64, true) < 2.0 * at(8, true), "{name}, {seek} ms: {} and {}", at(64, true), at(8, true));
            assert!(at(64, true) <= at(64, false) * 1.001, "taking sectors as they come never costs");
        }
    }
}

#[test]
fn flat_cost_disks_meet_their_costs() {
    let run = |name: &str, write, bytes: u64, depth| {
        requests_per_second(&mut find(name).unwrap().model(), write, bytes, depth)
    };
    assert!((900.0..1000.0).contains(&run("volume-1ms", false, 4096, 1)), "one at a time");
    assert!((1000.0..3001.0).contains(&run("volume-1ms", true, 4096, 50)), "many at once");
    assert!((1400.0..1600.0).contains(&run("sd-card", false, 4096, 1)), "A1 reads: {}", run("sd-card", false, 4096, 1));
    assert!((470.0..530.0).contains(&run("sd-card", true, 4096, 1)), "A1 writes: {}", run("sd-card", true, 4096, 1));
    let volume = run("volume-1ms", false, 1 << 20, 20) * 1048576.0 / 1e6;
    assert!((120.0..125.1).contains(&volume), "{volume} MB/s");
}

#[test]
fn the_write_cache_answers_at_once_and_writes_in_one_sweep() {
    let mut cached = find("hdd-2026").unwrap().model();
    let Some(Kind::Mechanical(sheet)) = find("hdd-2026").map(|p| p.kind) else { panic!() };
    let mut plain = Model::Mechanical(Box::new(DataSheet { write_cache: 0, ..sheet }.disk(false)));
    let scattered: Vec<Request> =
        (0..500).map(|i| Request::write((i * 7919 % 500) * 8_000_000_000 / 4096 * 4096, 4096)).collect();
    let each = |model: &mut Model| scattered.iter().fold(0, |now, r| model.serve(now, &[*r]));
    let (taken, written) = (each(&mut cached), each(&mut plain));
    assert!(taken * 50 < written, "{taken} and {written}");
    let flushed = cached.flush(taken);
    assert!(flushed > taken && flushed < written, "{flushed} of {written}: in order of the disk");
    assert_eq!(cached.flush(flushed) - flushed, 100_000, "nothing is left");
    // What is in the cache is read from there.
    let now = cached.serve(flushed, &[Request::write(0, 1 << 20)]);
    let read = cached.serve(now, &[Request::read(4096, 4096)]);
    assert!(read - now < 200_000, "{}", read - now);
}

#[test]
fn what_was_read_before_costs_only_the_first_write_a_way() {
    let (_, sheet) = sheets().remove(0);
    let writes = |read_first: bool| {
        let mut model = Model::Mechanical(Box::new(sheet.disk(false)));
        let far = model.capacity() / 4096 * 4096 - (1 << 20);
        let mut now = if read_first { model.serve(0, &[Request::read(far, 4096)]) } else { 0 };
        now = model.serve(now, &[Request::write(0, 4096)]);
        let begin = now;
        for i in 1..100 {
            now = model.serve(now, &[Request::write(i * 8192, 4096)]);
        }
        now - begin
    };
    // The arm went to the first write and stays there; only the angle differs, by what rounding makes of it.
    let (plain, after) = (writes(false), writes(true));
    assert!(after.abs_diff(plain) < plain / 100, "{after} after a read, {plain} without one");
}
