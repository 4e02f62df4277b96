//! The steps of a unit's life, taken with their effects. The rules of the fault path hold.
//!
//! [`hugeswap_policy::unit::step`] decides what an event makes of a unit. A caller that holds the
//! unit's lock does to the memory what the event says, then calls [`Memory::advance`] if it goes on
//! with the unit, or [`Memory::settle_by`] if it is done. Where an event takes the unit's place in
//! swap away, the caller says [`Memory::advance_freeing`] or [`Memory::settle_freeing`]: a place is
//! never given up in the fault path, for that may allocate.

use super::Memory;
use crate::table::Locked;
use hugeswap_policy::unit::Place;
use hugeswap_policy::unit::step::{Effects, Event, Lists};

impl Memory {
    /// Takes the step of an event that has happened to a locked unit, which stays locked.
    pub(crate) fn advance(&self, w: &mut Locked<'_>, event: Event) {
        let lists = self.take_step(w, event);
        self.tell(w.unit(), lists);
    }

    /// [`Memory::advance`] by an event that may take the unit's place away, which is given up. Not in
    /// the fault path.
    pub(crate) fn advance_freeing(&self, w: &mut Locked<'_>, event: Event) {
        let effects = w.step(event);
        self.store.free_place(w.unit(), effects.frees);
        let lists = self.count(effects);
        self.tell(w.unit(), lists);
    }

    /// [`Memory::settle_by`] by an event that may take the unit's place away, which is given up. Not
    /// in the fault path.
    pub(crate) fn settle_freeing(&self, mut w: Locked<'_>, event: Event) {
        let unit = w.unit();
        let effects = w.step(event);
        self.store.free_place(unit, effects.frees);
        let lists = self.count(effects);
        w.settle();
        self.tell(unit, lists);
    }

    /// Takes the step of an event that has happened to a locked unit, and unlocks it.
    pub(crate) fn settle_by(&self, w: Locked<'_>, event: Event) {
        let unit = w.unit();
        let lists = self.settle_untold(w, event);
        self.tell(unit, lists);
    }

    /// [`Memory::settle_by`] for a caller that tells the lists later, in the order that it wants.
    pub(crate) fn settle_untold(&self, mut w: Locked<'_>, event: Event) -> Lists {
        let lists = self.take_step(&mut w, event);
        w.settle();
        lists
    }

    /// Tells the reclaim lists of a unit, locked or not.
    pub(crate) fn tell(&self, unit: u32, lists: Lists) {
        match lists {
            Lists::Untold => {}
            Lists::Resident => self.note_resident(unit),
            Lists::Referenced => self.note_referenced(unit),
            Lists::PagesResident => self.note_pages_resident(unit),
        }
    }

    /// Takes the step with all of its effects but what the lists are told. The event leaves the unit
    /// its place.
    fn take_step(&self, w: &mut Locked<'_>, event: Event) -> Lists {
        let effects = w.step(event);
        debug_assert!(effects.frees == Place::Nothing, "{event:?} takes a place");
        self.count(effects)
    }

    fn count(&self, effects: Effects) -> Lists {
        for &counter in effects.counts {
            self.pool.count(counter, 1);
        }
        effects.lists
    }
}
