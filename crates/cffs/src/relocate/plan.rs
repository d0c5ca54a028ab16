//! What to move, and where to.

use super::bounds::Bounds;
use super::control::{Control, Limits, Progress};
use super::cost::Reader;
use super::evacuate::Gaps;
use super::keyed::{self, KeyedFiles};
use super::strays::MainGroups;
use super::stretch::{Item, Stretch, read_all};
use super::survey::{Survey, price};
use super::walk::{Visitor, skip_lost, walk};
use super::{MoveCtx, apart, area, detours, files, free_space, meta, names};
use crate::colocation::Order;
use crate::error::Result;
use crate::format::{BlockAddr, Extent, Geometry, Ino, ROOT_INO, Run};

/// Length of a stretch, in groups: no transfer is longer.
const STRETCH_GROUPS: u64 = 4;
/// Stretches go into free runs of so many groups, where so much has to move: between two runs the order of the name space has a
/// break, and a reader's disk seeks.
const RUN_GROUPS: u64 = 32;
/// An area has at least so many of them: one that is not quite emptied still has a run of this part of its length.
const AREA_RUNS: u64 = 2;
/// Bytes that are moved before a commit makes the space that they left usable again.
const COMMIT_BYTES: u64 = 8 << 20;
/// Areas are emptied only while good places would save at least one in so many parts of all that reading costs. What a first
/// regroup could not do a second one does not try again.
const EMPTY_DIVISOR: u64 = 4;
/// Emptying areas ends when one more saves less than one in so many parts of all that reading costs.
const ROUND_DIVISOR: u64 = 32;
/// Rounds that may save less than that before it ends.
const ROUNDS_IN_VAIN: u64 = 3;
/// Free space comes together after a regroup where at least one in so many parts of all is free.
const FREE_DIVISOR: u64 = 16;
/// A regroup that saves less than one in so many parts of the cost is one after another, and must not undo what that has done.
const UNDO_DIVISOR: u64 = 4;
/// Where free space is scarce and lies together, one in so many parts of a group moves at most then for a request that is saved, because
/// the long runs would be used up. What a regroup has left takes one to four groups for each, and what came apart a quarter of one.
const UNDO_PRICE_DIVISOR: u64 = 2;
/// Free space stays as it is after moves of at most one in so many parts of it.
const SCATTERED_DIVISOR: u64 = 64;
/// Names come together with strays already, if not more bytes than these move for each request that is saved.
const NAMES_PRICE: u64 = 256 << 10;
/// Most passes in which any better place is taken.
const PASSES_MAX: u64 = 16;

/// Brings what is below the given directories back together. Stretches go into long free runs, in the order of the name space;
/// where the budget is too small for all of them, those that save most for their bytes. When the free runs are used up, areas of
/// the device are emptied for the rest. At the end free space comes together, if all of the file system was asked for: what is
/// written next lies in what is left. Where it lies together already and is scarce, and little would be saved, only what is cheap moves.
///
/// # Errors
/// Those of the device and the journal, and what [`Control::check`] returns.
pub fn run(cx: &MoveCtx<'_>, roots: &[Ino], limits: Limits, control: &dyn Control) -> Result<()> {
    let mut planner = Planner::new(cx, limits, control);
    planner.progress.before = apart::costs(cx, roots, control)?.unwrap_or_default();
    let mut survey = if limits.always { Survey::default() } else { planner.survey(roots)? };
    let whole = roots.contains(&ROOT_INO) && !limits.always;
    if whole && planner.would_undo(&survey)? {
        planner.price_most = planner.g.group_size() as u64 / UNDO_PRICE_DIVISOR;
        survey.leave_dearer(planner.price_most);
    }
    let prices = planner.prices(&survey);
    if prices.is_empty() {
        planner.expect(survey.total() >> planner.g.frag_shift);
    }
    let gathers = whole && prices.is_empty() && planner.price_most == u64::MAX && !limits.dry_run;
    planner.work(roots, prices)?;
    if gathers {
        planner.bring_free_space_together(roots)?;
    }
    if let Some((costs, _)) = apart::run(cx, roots, apart::ANY, limits, control, &mut planner.progress)? {
        planner.progress.after = costs;
        control.report(&planner.progress);
    }
    Ok(())
}

/// Brings strays back to the files that they belong to, and what is left together, if `is_worth_it` says so of it. Goes on from the
/// progress so far. False if there is more to do.
///
/// # Errors
/// As for [`run`].
pub fn run_by_need(
    cx: &MoveCtx<'_>,
    roots: &[Ino],
    limits: Limits,
    is_worth_it: impl FnOnce(&Outlook) -> bool,
    control: &dyn Control,
    progress: &mut Progress,
) -> Result<bool> {
    let mut planner = Planner::new(cx, limits, control);
    planner.progress = *progress;
    (planner.only_strays, planner.lenient) = (true, true);
    planner.with_room = cx.file.placement.leaves_room();
    let survey = planner.survey(roots)?;
    (planner.only_strays, planner.lenient) = (false, false);
    planner.report();
    let outlook = Outlook {
        moved: planner.progress.bytes_moved,
        bytes: survey.total(),
        saved: survey.saved,
        cost: planner.total_cost(),
    };
    if is_worth_it(&outlook) {
        if planner.with_room {
            planner.expect(survey.total() >> planner.g.frag_shift);
        }
        planner.work(roots, Vec::new())?;
        *progress = planner.progress;
        return Ok(planner.waiting == 0);
    }
    *progress = planner.progress;
    if planner.with_room {
        detours::run(cx, roots, limits.budget, control, progress)?;
    }
    Ok(survey.saved == 0 && planner.waiting == 0)
}

/// What a regroup would have to move, and what that would save at best.
#[derive(Clone, Copy, Debug)]
pub struct Outlook {
    /// Bytes that strays have moved already.
    pub moved: u64,
    /// Bytes to be moved.
    pub bytes: u64,
    /// What reading everything would save, in parts of a request.
    pub saved: u64,
    /// What it takes now.
    pub cost: u64,
}

/// What is read in one order: data of small files, or names.
struct Sequence {
    stretch: Stretch,
    /// Who has read what is before it: as it was, and as it is now.
    came_from: [Reader; 2],
    /// Where the next stretch would best go.
    near: Option<BlockAddr>,
}

impl Sequence {
    fn new(reader: &Reader) -> Sequence {
        Sequence { stretch: Stretch::default(), came_from: [reader.clone(), reader.clone()], near: None }
    }
}

struct Planner<'a> {
    cx: MoveCtx<'a>,
    g: Geometry,
    limits: Limits,
    control: &'a dyn Control,
    progress: Progress,
    /// Data, names and tables.
    sequences: [Sequence; 3],
    /// Costs of each in this pass: as they were, and as they are now.
    costs: [[u64; 2]; 3],
    /// Fragments of stretches that should move and have no good place, and of those that have moved, in this pass.
    waiting: u64,
    placed: u64,
    /// What good places for those that wait would save, in parts of a request.
    waiting_saves: u64,
    /// Directories and files that this pass has come to.
    seen: (u64, u64),
    /// What the walk under way is for.
    kind: Kind,
    /// Any place that saves enough will do.
    lenient: bool,
    /// Fragments of the free runs that stretches go into.
    run_frags: u64,
    /// Nothing is moved that costs more bytes than this for each request that it saves.
    price: u64,
    /// The highest price in all of the passes.
    price_most: u64,
    /// Where the next pass begins to place.
    start: Option<BlockAddr>,
    /// Bytes moved since the last commit.
    uncommitted: u64,
    /// What there is to be moved is only counted.
    survey: Option<Survey>,
    /// Files of units, which come after the others.
    keyed: KeyedFiles,
    /// The walk under way is for these alone.
    only_keyed: bool,
    /// Nothing but strays is moved in the pass under way.
    only_strays: bool,
    /// What moves leaves room for what will be written among it.
    with_room: bool,
}

/// Which of the sequences.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data = 0,
    Names = 1,
    /// Blocks of the inode tables: who creates files looks for free slots in one after the other.
    Tables = 2,
}

/// New places, for either kind.
enum Places {
    Data(files::Places),
    Names(names::Places),
}

impl Places {
    fn reader(&self, cx: &MoveCtx<'_>, g: &Geometry, from: &Reader, stretch: &Stretch) -> Reader {
        match self {
            Places::Data(p) => stretch.reader_of(g, from, |n| &p.runs[n]),
            Places::Names(p) => read_all(g, from, p.all(cx)),
        }
    }

    fn frags(&self, g: &Geometry) -> u64 {
        match self {
            Places::Data(p) => p.all().map(|r| r.len).sum(),
            Places::Names(p) => g.frag_of_block(p.blocks.len() as u64),
        }
    }

    fn cancel(self, cx: &MoveCtx<'_>) {
        match self {
            Places::Data(p) => p.cancel(cx),
            Places::Names(p) => p.cancel(cx),
        }
    }
}

impl<'a> Planner<'a> {
    fn new(cx: &MoveCtx<'a>, limits: Limits, control: &'a dyn Control) -> Planner<'a> {
        Planner {
            cx: *cx,
            g: *cx.file.cache.geometry(),
            limits,
            control,
            progress: Progress::default(),
            sequences: [(); 3].map(|()| Sequence::new(&Reader::of_stretches())),
            costs: Default::default(),
            waiting: 0,
            placed: 0,
            waiting_saves: 0,
            seen: (0, 0),
            kind: Kind::Names,
            lenient: false,
            run_frags: 0,
            price: u64::MAX,
            price_most: u64::MAX,
            start: None,
            uncommitted: 0,
            survey: None,
            keyed: KeyedFiles::default(),
            only_keyed: false,
            only_strays: false,
            with_room: false,
        }
    }

    /// Where the budget does not suffice for everything: prices, the lowest first, because what saves most for each byte comes
    /// first. None if it does.
    fn prices(&self, survey: &Survey) -> Vec<u64> {
        if self.limits.always || survey.bytes_to_move() <= self.limits.budget {
            return Vec::new();
        }
        match self.limits {
            // Nothing moves, so one pass has to find what many would take.
            Limits { dry_run: true, budget, .. } => vec![survey.price_within(budget)],
            _ => survey.prices(),
        }
    }

    /// So many fragments are to move: with more of them, stretches go into longer free runs.
    fn expect(&mut self, frags: u64) {
        self.run_frags = (RUN_GROUPS * self.g.group_frags()).min(frags);
    }

    /// Whether what is to be moved saves little, and would use up the long runs where little is free.
    fn would_undo(&self, survey: &Survey) -> Result<bool> {
        if survey.saved == 0 || survey.saved >= self.total_cost() / UNDO_DIVISOR {
            return Ok(false);
        }
        // What was freed lies in no run before that.
        self.cx.file.journal.commit()?;
        // Without a bitmap that cannot be read the others still move.
        Ok(skip_lost(free_space::is_scarce_and_together(&self.cx))?.unwrap_or(false))
    }

    /// Free space comes together, because what is written next lies there; and once more after files that went into gaps for
    /// that are brought back. Each gathering moves at most as much as the regroup had moved before the first, and there is none where
    /// hardly anything is free, because that would scatter more than it gains.
    fn bring_free_space_together(&mut self, roots: &[Ino]) -> Result<()> {
        let moved = self.progress.bytes_moved;
        let usable = free_space::usable(&self.cx);
        let is_scattered = moved > (usable << self.g.frag_shift) / SCATTERED_DIVISOR;
        if !is_scattered || usable < self.g.total_frags() / FREE_DIVISOR {
            return Ok(());
        }
        if self.gather_free_space(moved)? {
            // Some files lie elsewhere now.
            let survey = self.survey(roots)?;
            self.expect(survey.total() >> self.g.frag_shift);
            self.work(roots, Vec::new())?;
            // They took a part of it.
            if self.gather_free_space(moved)? {
                let waiting = self.waiting;
                self.survey(roots)?;
                self.waiting = waiting;
                self.report();
            }
        }
        Ok(())
    }

    /// Moves at most so many bytes. False if nothing had to move.
    fn gather_free_space(&mut self, most: u64) -> Result<bool> {
        let moved = self.progress.bytes_moved;
        let limits = Limits { budget: self.limits.budget.min(moved.saturating_add(most)), ..self.limits };
        let outcome = free_space::run(&self.cx, limits, Gaps::InOrder, self.control, &mut self.progress);
        // That is told those who ask for nothing else.
        self.progress.free_runs = None;
        self.report();
        outcome.map(|()| self.progress.bytes_moved > moved)
    }

    /// Moves what costs at most each of these prices, then everything. Without prices the budget suffices for that.
    fn work(&mut self, roots: &[Ino], prices: Vec<u64>) -> Result<()> {
        let complete = prices.is_empty();
        for price in prices.into_iter().chain([u64::MAX]) {
            self.price = price.min(self.price_most);
            self.pass(roots)?;
            self.report();
            if self.limits.dry_run || self.limits.always || self.left() == 0 {
                return Ok(());
            }
        }
        // To empty areas brings files into gaps that are brought together only afterwards: without a budget for both it would
        // cost requests.
        if !complete {
            return Ok(());
        }
        let mut cost = u64::MAX;
        while self.left() > 0 && self.total_cost() < cost - cost / ROUND_DIVISOR {
            cost = self.total_cost();
            self.empty_areas(roots)?;
            self.take_what_helps(roots)?;
        }
        Ok(())
    }

    /// Goes through the tree once, and moves nothing.
    fn survey(&mut self, roots: &[Ino]) -> Result<Survey> {
        self.survey = Some(Survey::default());
        let outcome = self.pass(roots);
        let survey = self.survey.take().unwrap_or_default();
        outcome.map(|()| survey)
    }

    /// Empties areas for stretches that have no good place, as long as that makes reading cheaper.
    fn empty_areas(&mut self, roots: &[Ino]) -> Result<()> {
        let cx = self.cx;
        let (mut best, mut in_vain) = (self.total_cost(), 0);
        while self.waiting > 0 && self.left() > 0 && self.waiting_saves * EMPTY_DIVISOR >= self.total_cost() {
            // What is in it goes out, and as much comes in: a half of that would cost requests.
            let Some(area) = area::choose_area(&cx, self.waiting.min(self.left() / 2))? else { break };
            if self.left() < 2 * self.g.frag_of_block(area.end - area.start) {
                break;
            }
            let moved = area::empty(&cx, area.clone(), self.left(), self.control)?;
            self.progress.bytes_moved += moved << self.g.frag_shift;
            self.start = Some(area.start);
            let most = self.g.frag_of_block(area.end - area.start) / AREA_RUNS;
            self.run_frags = self.run_frags.min(self.waiting).min(most);
            self.pass(roots)?;
            self.report();
            // What goes out of an area costs more at first. But after some rounds there has to be a gain.
            let cost = self.total_cost();
            if cost < best - best / ROUND_DIVISOR {
                (best, in_vain) = (cost, 0);
            } else if in_vain == ROUNDS_IN_VAIN {
                break;
            } else {
                in_vain += 1;
            }
        }
        Ok(())
    }

    /// Good places cannot be made any more: what has a better one than now takes it, and leaves room for others.
    fn take_what_helps(&mut self, roots: &[Ino]) -> Result<()> {
        self.lenient = self.waiting > 0;
        for _ in 0..PASSES_MAX {
            self.pass(roots)?;
            self.report();
            if self.placed == 0 || self.left() == 0 {
                break;
            }
        }
        self.lenient = false;
        Ok(())
    }

    /// What reading all files and names costs as it is now.
    fn total_cost(&self) -> u64 {
        let [data, names, _] = self.costs;
        data[1] + names[1]
    }

    /// A reader who has read nothing. Where room is left, much lies among its neighbours that is read with them; elsewhere to leave
    /// it near saves little, and breaks up free space.
    fn reader(&self) -> Reader {
        if self.with_room { self.cx.reader() } else { Reader::of_stretches() }
    }

    /// Tells what there is after a pass. What was before is known from the first one.
    fn report(&mut self) {
        let [data, names, _] = self.costs;
        if self.progress.before == [0; 2] {
            self.progress.before = [data[0], names[0]];
        }
        self.progress.after = [data[1], names[1]];
        self.progress.bytes_waiting = self.waiting << self.g.frag_shift;
        self.control.report(&self.progress);
    }

    /// Fragments that may still be moved.
    fn left(&self) -> u64 {
        self.limits.budget.saturating_sub(self.progress.bytes_moved) >> self.g.frag_shift
    }

    /// Goes through the tree once, and moves the stretches that have a better place.
    fn pass(&mut self, roots: &[Ino]) -> Result<()> {
        (self.costs, self.waiting, self.waiting_saves, self.placed) = (Default::default(), 0, 0, 0);
        self.seen = (0, 0);
        let mut near = self.start.take();
        let cx = self.cx;
        let reader = self.reader();
        self.sequences = [(); 3].map(|()| Sequence::new(&reader));
        if roots.contains(&ROOT_INO) {
            self.tables()?;
        }
        // All names first, so that they lie next to each other.
        for kind in [Kind::Names, Kind::Data] {
            self.kind = kind;
            self.sequences[kind as usize].near = near;
            for root in roots {
                self.sequences[kind as usize].came_from = [reader.clone(), reader.clone()];
                walk(&cx, *root, self)?;
                self.finish(kind)?;
            }
            if kind == Kind::Data {
                self.keyed_files(roots)?;
            }
            near = self.sequences[kind as usize].near.filter(|_| near.is_some());
        }
        self.commit()
    }

    /// The blocks of the inode tables. They are few, so they come together also where all else is only counted.
    fn tables(&mut self) -> Result<()> {
        let mut blocks = Vec::new();
        // A table that cannot be read stays where it is, and nothing else with it.
        skip_lost(meta::of_tables(&self.cx, &mut |block, _| blocks.extend(block.as_item(&self.g))))?;
        let survey = if self.only_strays { self.survey.take() } else { None };
        let pushed = blocks.into_iter().try_for_each(|item| self.push(Kind::Tables, item));
        let outcome = pushed.and_then(|()| self.finish(Kind::Tables));
        self.survey = survey.or_else(|| self.survey.take());
        outcome
    }

    /// The files of units, after the others.
    fn keyed_files(&mut self, roots: &[Ino]) -> Result<()> {
        let cx = self.cx;
        loop {
            self.sequences[Kind::Data as usize].came_from = [self.reader(), self.reader()];
            for unit in self.keyed.take().chunk_by(|(unit, _), (next, _)| unit == next) {
                self.unit(unit[0].0, unit.iter().map(|(_, ino)| *ino))?;
            }
            self.finish(Kind::Data)?;
            if !self.keyed.begin_next_walk() {
                self.keyed = KeyedFiles::default();
                self.only_keyed = false;
                return Ok(());
            }
            self.only_keyed = true;
            for root in roots {
                walk(&cx, *root, self)?;
            }
        }
    }

    /// The files of a unit, which is read alone. One that is no longer than a group stays where that takes hardly more requests than it must;
    /// a longer one is in no stretch with others.
    fn unit(&mut self, number: Ino, files: impl Iterator<Item = Ino>) -> Result<()> {
        let (cx, g) = (self.cx, self.g);
        let (mut unit, mut begins) = (Stretch::default(), true);
        for ino in files {
            self.control.check()?;
            for item in keyed::items(&cx, number, ino)? {
                unit.push(Item { begins, ..item });
                begins = false;
            }
            if unit.frags > g.group_frags() {
                if unit.items[0].begins {
                    self.finish(Kind::Data)?;
                }
                self.push_all(&mut unit)?;
            }
        }
        let is_short = unit.items.first().is_some_and(|i| i.begins);
        if is_short {
            let stays = unit.reader(&g, &self.reader()).cost();
            if !Bounds::new(&unit, &g, stays, self.limits.always).may_save_enough() {
                self.costs[Kind::Data as usize].iter_mut().for_each(|cost| *cost += stays);
                return Ok(());
            }
            // Half of it would not be placed as what it is.
            if self.sequences[Kind::Data as usize].stretch.frags + unit.frags > STRETCH_GROUPS * g.group_frags() {
                self.finish(Kind::Data)?;
            }
        }
        self.push_all(&mut unit)?;
        if is_short { Ok(()) } else { self.finish(Kind::Data) }
    }

    fn push_all(&mut self, stretch: &mut Stretch) -> Result<()> {
        std::mem::take(stretch).items.into_iter().try_for_each(|item| self.push(Kind::Data, item))
    }

    fn push(&mut self, kind: Kind, item: Item) -> Result<()> {
        let stretch = &mut self.sequences[kind as usize].stretch;
        stretch.push(item);
        let full = stretch.frags >= self.g.frag_of_block(STRETCH_GROUPS * self.g.group_blocks());
        if full { self.finish(kind) } else { Ok(()) }
    }

    /// A stretch is complete: as much of it as the budget allows moves, if that saves enough.
    fn finish(&mut self, kind: Kind) -> Result<()> {
        let mut stretch = std::mem::take(&mut self.sequences[kind as usize].stretch);
        let most = if self.survey.is_some() { u64::MAX } else { self.left().max(1) };
        let rest = stretch.split_off(most);
        for stretch in [stretch, rest] {
            if stretch.items.is_empty() {
                continue;
            }
            let (g, sequence) = (self.g, &self.sequences[kind as usize]);
            let ([was, is], near) = (sequence.came_from.clone(), sequence.near);
            let before = stretch.reader(&g, &was);
            let stays = stretch.reader(&g, &is);
            let moved = self.move_stretch(&stretch, stays.cost(), &is, near, kind)?;
            let sequence = &mut self.sequences[kind as usize];
            if let Some(goes) = &moved {
                sequence.near = goes.last(&g);
            }
            let after = moved.unwrap_or(stays);
            sequence.near = sequence.near.or(after.last(&g));
            let costs = &mut self.costs[kind as usize];
            costs[0] += before.cost();
            costs[1] += after.cost();
            sequence.came_from = [before, after];
        }
        self.control.report(&self.progress);
        Ok(())
    }

    /// A reader of the stretch where it has gone; `None` if it stays.
    fn move_stretch(
        &mut self,
        stretch: &Stretch,
        stays: u64,
        from: &Reader,
        near: Option<BlockAddr>,
        kind: Kind,
    ) -> Result<Option<Reader>> {
        self.control.check()?;
        let g = self.g;
        let bounds = Bounds::new(stretch, &g, stays, self.limits.always);
        let least = bounds.least;
        // Strays can save more than a move of all: the others are read on with what is before them. Without room they go into the small gaps that new files need.
        let strays_first = self.only_strays && self.with_room && kind != Kind::Tables;
        if !bounds.may_save_enough() && !strays_first {
            return Ok(None);
        }
        let mut brought_back = None;
        if (kind == Kind::Data || strays_first)
            && !bounds.always
            && stretch.units() < 2
            && (self.survey.is_none() || self.only_strays)
            && let Some(main) = MainGroups::of(&g, stretch)
        {
            brought_back = self.bring_back(stretch, &main, bounds, from, kind)?;
        }
        let stays = brought_back.as_ref().map_or(stays, Reader::cost);
        let bytes = stretch.frags << g.frag_shift;
        let saved = stays.saturating_sub(least);
        let moves = strays_first
            && kind == Kind::Names
            && bounds.may_save_enough()
            && price(bytes, saved) <= NAMES_PRICE
            && stretch.frags <= self.left();
        if let Some(survey) = self.survey.as_mut().filter(|_| !moves) {
            if bounds.may_save_enough() && bounds.at(stays).may_save_enough() {
                survey.note(bytes, saved);
            }
            return Ok(brought_back);
        }
        if brought_back.is_some() {
            return Ok(brought_back);
        }
        if stretch.frags > self.left() || !bounds.always && price(bytes, saved) > self.price {
            return Ok(None);
        }
        let first = stretch.items[0].runs[0].start;
        let near = near.unwrap_or_else(|| g.group_of(g.block_of_frag(first)));
        let cx = self.cx;
        let places = self.allocate(stretch, near, kind)?;
        let reader = places.as_ref().map(|p| p.reader(&cx, &g, from, stretch));
        let (Some(places), Some(reader)) = (places, reader) else {
            self.note_waiting(stretch, saved);
            return Ok(None);
        };
        if !self.takes(bounds, reader.cost()) {
            places.cancel(&cx);
            self.note_waiting(stretch, saved);
            return Ok(None);
        }
        self.relocate(&stretch.items, places)?;
        Ok(Some(reader))
    }

    /// There is no good place for a stretch, which would save so much.
    fn note_waiting(&mut self, stretch: &Stretch, saves: u64) {
        self.waiting += stretch.frags;
        self.waiting_saves += saves;
    }

    /// Whether places at such a cost are taken.
    fn takes(&self, bounds: Bounds, cost: u64) -> bool {
        if self.lenient { bounds.saves_enough(cost) } else { bounds.is_good(cost) }
    }

    /// Moves the files or blocks of a stretch that lie elsewhere to where most of it is, if that saves enough for their bytes.
    fn bring_back(
        &mut self,
        stretch: &Stretch,
        main: &MainGroups,
        bounds: Bounds,
        from: &Reader,
        kind: Kind,
    ) -> Result<Option<Reader>> {
        let (cx, g) = (self.cx, self.g);
        let strays: Vec<Item> = main.strays.iter().map(|n| stretch.items[*n].clone()).collect();
        let bytes = strays.iter().map(Item::frags).sum::<u64>() << g.frag_shift;
        let is_stray = |n: usize| main.strays.binary_search(&n);
        let without = |n: usize| if is_stray(n).is_ok() { &[] } else { &stretch.items[n].runs[..] };
        let at_best = stretch.reader_of(&g, from, without).cost();
        if !self.takes(bounds, at_best) {
            return Ok(None);
        }
        if bytes >> g.frag_shift > self.left() || price(bytes, bounds.stays - at_best) > self.price {
            return Ok(None);
        }
        // Each as near as possible to what is read before it.
        let mut before = stretch.items[0].runs[0].start;
        let mut goals = Vec::with_capacity(strays.len());
        for (n, item) in stretch.items.iter().enumerate() {
            match is_stray(n) {
                Ok(_) => goals.push(main.near(&g, before)),
                Err(_) => before = item.runs[0].start,
            }
        }
        let mut new: Vec<Vec<Run>> = vec![Vec::new(); strays.len()];
        let (places, strays) = if kind == Kind::Data {
            let mut places = files::allocate_in(&cx, &strays, &goals)?;
            for stray in main.staying(|n| !places.runs[n].is_empty()) {
                places.give_up(&cx, stray);
            }
            new.clone_from(&places.runs);
            (Places::Data(places), strays)
        } else {
            let (places, placed) = names::allocate_in(&cx, &strays, &goals)?;
            placed.iter().zip(places.all(&cx)).for_each(|(n, run)| new[*n].push(run));
            (Places::Names(places), placed.into_iter().map(|n| strays[n].clone()).collect())
        };
        let reader = stretch.reader_of(&g, from, |n| match is_stray(n) {
            Ok(at) if !new[at].is_empty() => &new[at],
            _ => &stretch.items[n].runs,
        });
        if !self.takes(bounds, reader.cost()) {
            places.cancel(&cx);
            return Ok(None);
        }
        self.relocate(&strays, places)?;
        Ok(Some(reader))
    }

    /// Moves items to their places, and counts that; in a dry run only that.
    fn relocate(&mut self, items: &[Item], places: Places) -> Result<()> {
        let (cx, g) = (self.cx, self.g);
        let frags = places.frags(&g);
        if self.limits.dry_run {
            places.cancel(&cx);
            self.progress.bytes_moved += frags << g.frag_shift;
            return Ok(());
        }
        let moved = match places {
            Places::Data(p) => {
                let (frags, files) = files::relocate(&cx, items, p, self.control)?;
                self.progress.files_moved += files;
                frags
            }
            Places::Names(p) => {
                let blocks = names::relocate(&cx, items, p)?;
                self.progress.blocks_moved += blocks;
                self.control.pace((2 * blocks) << g.block_shift);
                g.frag_of_block(blocks)
            }
        };
        self.placed += moved;
        let bytes = moved << g.frag_shift;
        self.progress.bytes_moved += bytes;
        self.progress.bytes_kept += frags.saturating_sub(moved) << g.frag_shift;
        self.uncommitted += bytes;
        if self.uncommitted >= COMMIT_BYTES {
            self.commit()?;
        }
        Ok(())
    }

    fn allocate(&mut self, stretch: &Stretch, near: BlockAddr, kind: Kind) -> Result<Option<Places>> {
        let cx = self.cx;
        let least = if self.lenient { 0 } else { self.run_frags };
        let with_room = self.with_room;
        let filled = if with_room { cx.file.placement.filled_of_group() } else { self.g.group_frags() };
        let attempt = || -> Result<Option<Places>> {
            Ok(match kind {
                Kind::Data if with_room => {
                    let mut places = files::allocate_with_room(&cx, &stretch.items, near, least)?;
                    // What was never used is planned for by nobody.
                    if places.is_none() && cx.file.space.has_virgin_groups() {
                        places = files::allocate(&cx, &stretch.items, near, least)?;
                    }
                    places.map(Places::Data)
                }
                Kind::Data => files::allocate(&cx, &stretch.items, near, least)?.map(Places::Data),
                Kind::Names | Kind::Tables => names::allocate(&cx, &stretch.items, near, filled)?.map(Places::Names),
            })
        };
        if let Some(places) = attempt()? {
            return Ok(Some(places));
        }
        if self.uncommitted == 0 {
            return Ok(None);
        }
        // What was moved has left space that becomes usable with the next commit.
        self.commit()?;
        attempt()
    }

    fn commit(&mut self) -> Result<()> {
        if std::mem::take(&mut self.uncommitted) == 0 { Ok(()) } else { self.cx.file.journal.commit() }
    }
}

impl Visitor for Planner<'_> {
    fn directory(&mut self, _ino: Ino) -> Result<bool> {
        self.control.check()?;
        self.seen.0 += u64::from(self.kind == Kind::Data);
        self.progress.directories = self.progress.directories.max(self.seen.0);
        Ok(true)
    }

    fn wants(&self) -> [bool; 2] {
        [self.kind == Kind::Names, self.kind == Kind::Data]
    }

    fn block(&mut self, dir: Ino, lblock: u64, addr: BlockAddr) -> Result<()> {
        self.push(Kind::Names, Item::block(&self.g, dir, lblock, addr))
    }

    fn file(&mut self, ino: Ino, size: u64, extents: &[Extent]) -> Result<()> {
        self.seen.1 += u64::from(!self.only_keyed);
        self.progress.files = self.progress.files.max(self.seen.1);
        if size > self.cx.file.placement.small_max() || self.only_keyed {
            return Ok(());
        }
        self.push(Kind::Data, Item::file(ino, extents))
    }

    fn file_of_unit(&mut self, (unit, order): (Ino, Order), ino: Ino, size: u64, _: &[Extent]) -> Result<()> {
        self.seen.1 += u64::from(!self.only_keyed);
        self.progress.files = self.progress.files.max(self.seen.1);
        if keyed::goes_with_others(&self.cx, unit, ino, size) {
            self.keyed.push(unit, order, ino);
        }
        Ok(())
    }
}
