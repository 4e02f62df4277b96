//! Each backend on real memory: what is brought, protected and taken away, and what a call that
//! fails leaves behind.
//!
//! Nothing here takes a fault: whether memory can be accessed is asked by process_vm_readv and
//! process_vm_writev, which fail with EFAULT.

use super::*;
use crate::PAGES;
use hugeswap_sys::process;

/// Two absent units, an empty place that frames can be moved to, and one for new frames.
struct Rig {
    backend: Backend,
    unit: usize,
    other: usize,
    place: usize,
    frame: usize,
}

/// An address that nothing can be mapped at.
const NOWHERE: usize = 1 << 62;

fn rig(message: bool, userfaultfd: bool) -> Option<Rig> {
    let wanted = Wanted {
        message,
        userfaultfd,
        low_fd: 100,
        frames: 16,
        mappings: 0,
    };
    let backend = match Backend::open(wanted) {
        Ok(backend) => backend,
        Err(e) => {
            println!("skipped: no message mode: {e:?}");
            return None;
        }
    };
    if userfaultfd && !message && backend.kind() != Kind::SignalUffd {
        println!("skipped: userfaultfd is refused");
        return None;
    }
    let raw = mm::map_own(5 * UNIT, mm::PROT_RW).unwrap();
    let unit = raw.next_multiple_of(UNIT);
    let (other, place, frame) = (unit + UNIT, unit + 2 * UNIT, unit + 3 * UNIT);
    backend.prepare_window(unit, 2 * UNIT).unwrap();
    backend.register_places(place, UNIT).unwrap();
    if message {
        backend.register_window(unit, 2 * UNIT).unwrap();
    } else {
        // SAFETY: mapped above, and empty.
        unsafe { mm::protect(unit, 2 * UNIT, mm::PROT_NONE) }.unwrap();
    }
    Some(Rig {
        backend,
        unit,
        other,
        place,
        frame,
    })
}

/// Every backend that is to be had.
fn each(test: impl Fn(Rig)) {
    [(false, true), (false, false), (true, false)]
        .into_iter()
        .filter_map(|(message, userfaultfd)| rig(message, userfaultfd))
        .for_each(test);
}

/// Every backend that has parts of units.
fn each_with_parts(test: impl Fn(Rig)) {
    each(|rig| {
        if rig.backend.can().has_parts() {
            test(rig);
        }
    });
}

impl Rig {
    /// Makes a new frame, with pages that differ.
    fn fill(&self) {
        // SAFETY: the frame is ours.
        unsafe { mm::map_anon(self.frame, UNIT, mm::PROT_RW, true) }.unwrap();
        for page in 0..PAGES {
            // SAFETY: the frame is ours, readable and writable.
            unsafe {
                std::ptr::write_bytes((self.frame + page * PAGE) as *mut u8, byte(page), PAGE);
            }
        }
    }

    /// Brings such a frame to the unit.
    fn bring(&self, write: bool) {
        self.fill();
        self.backend.move_in(self.frame, self.unit, write).unwrap();
    }

    fn part(&self, page: usize) -> Range<usize> {
        self.backend.part_of(page).unwrap()
    }
}

fn byte(page: usize) -> u8 {
    page as u8 ^ (page >> 8) as u8 | 1
}

/// The byte at `at`, if it can be read.
fn peek(at: usize) -> Option<u8> {
    let mut byte = 0u8;
    let (to, from) = vectors(&mut byte, at);
    // SAFETY: both vectors are one byte, of which the first is ours; the kernel checks the other.
    let n = unsafe { libc::process_vm_readv(process::pid(), &to, 1, &from, 1, 0) };
    (n == 1).then_some(byte)
}

/// Writes a byte, if it can be written.
fn poke(at: usize, mut byte: u8) -> bool {
    let (from, to) = vectors(&mut byte, at);
    // SAFETY: both vectors are one byte, of which the second is this test's memory.
    let n = unsafe { libc::process_vm_writev(process::pid(), &from, 1, &to, 1, 0) };
    n == 1
}

fn vectors(byte: &mut u8, at: usize) -> (libc::iovec, libc::iovec) {
    let vector = |at: usize| libc::iovec {
        iov_base: at as *mut _,
        iov_len: 1,
    };
    (vector(&raw mut *byte as usize), vector(at))
}

/// Is it memory of which each page can be read and is as [`Rig::fill`] wrote it?
fn is_whole(at: usize) -> bool {
    (0..PAGES).all(|page| peek(at + page * PAGE) == Some(byte(page)))
}

/// Is no page of it in memory?
fn is_empty(at: usize) -> bool {
    let mut seen = [0u8; PAGES];
    mm::resident(at, UNIT, &mut seen).unwrap();
    seen.iter().all(|s| s & 1 == 0)
}

#[test]
fn a_frame_goes_to_a_unit_and_comes_back() {
    each(|r| {
        r.bring(true);
        assert!(is_whole(r.unit) && is_empty(r.frame));
        assert!(poke(r.unit + 7 * PAGE, byte(7)));
        r.backend.move_out(r.unit, r.place, false).unwrap();
        assert!(is_whole(r.place) && is_empty(r.unit));
        assert!(poke(r.place, byte(0)));
        // And again: nothing of the first time is in the way.
        r.backend.move_in(r.place, r.unit, false).unwrap();
        assert!(is_whole(r.unit) && is_empty(r.place));
    });
}

#[test]
fn a_unit_that_arrives_read_only_is_written_when_it_is_made_writable() {
    each(|r| {
        r.bring(false);
        assert!(is_whole(r.unit));
        if !r.backend.can().arrives_read_only {
            assert!(poke(r.unit, byte(0)));
            return;
        }
        assert!(!poke(r.unit, 0));
        r.backend.set_writable(r.unit, UNIT).unwrap();
        assert!(poke(r.unit, byte(0)));
        r.backend.set_read_only(r.unit, UNIT).unwrap();
        assert!(!poke(r.unit, 0));
        assert!(is_whole(r.unit));
    });
}

#[test]
fn a_watched_unit_is_without_access_and_keeps_its_memory() {
    each(|r| {
        if !r.backend.can().watches_in_place {
            return;
        }
        r.bring(false);
        r.backend.watch(r.unit).unwrap();
        assert_eq!(peek(r.unit), None);
        r.backend.set_readable(r.unit).unwrap();
        assert!(is_whole(r.unit));
        r.backend.watch(r.unit).unwrap();
        r.backend.move_out(r.unit, r.place, true).unwrap();
        assert!(is_whole(r.place));
    });
}

#[test]
fn a_write_to_what_is_read_only_is_a_message_in_message_mode() {
    let Some(r) = rig(true, false) else {
        return;
    };
    r.bring(true);
    r.backend.set_read_only(r.unit, UNIT).unwrap();
    let page = r.unit + 3 * PAGE;
    std::thread::scope(|s| {
        let writer = s.spawn(|| poke(page, 99));
        let fd = r.backend.messages();
        assert!(hugeswap_sys::fs::wait_readable(fd, 10_000));
        let mut m = [uffd::Message::default()];
        assert_eq!(uffd::read(fd, &mut m), Ok(1));
        assert_eq!(m[0].address as usize & !(PAGE - 1), page);
        assert_ne!(m[0].flags & uffd::FLAG_WP, 0);
        r.backend.set_writable(r.unit, UNIT).unwrap();
        r.backend.wake(page);
        assert!(writer.join().unwrap());
    });
    assert_eq!(peek(page), Some(99));
}

#[test]
fn a_unit_is_relocated_to_an_absent_one() {
    each(|r| {
        r.bring(true);
        r.backend.relocate(r.unit, r.other, false).unwrap();
        assert!(is_empty(r.unit));
        if r.backend.can().watches_in_place {
            assert_eq!(peek(r.other), None);
            r.backend.set_readable(r.other).unwrap();
        }
        assert!(is_whole(r.other));
    });
}

#[test]
fn a_frame_that_cannot_be_moved_is_where_it_was() {
    each(|r| {
        r.fill();
        for write in [true, false] {
            assert!(r.backend.move_in(r.frame, NOWHERE, write).is_err());
            assert!(is_whole(r.frame));
            assert!(poke(r.frame, byte(0)));
        }
        r.backend.move_in(r.frame, r.unit, true).unwrap();
        assert!(r.backend.move_out(r.unit, NOWHERE, false).is_err());
        assert!(r.backend.relocate(r.unit, NOWHERE, false).is_err());
        r.backend.set_readable(r.unit).unwrap();
        assert!(is_whole(r.unit));
    });
}

#[test]
fn what_is_dropped_is_absent_whatever_became_of_its_mapping() {
    each(|r| {
        r.bring(true);
        r.backend.drop_units(r.unit, 2 * UNIT).unwrap();
        assert!(is_empty(r.unit));
        r.bring(true);
        // SAFETY: this test's memory.
        unsafe { mm::map_anon(r.unit + 9 * PAGE, PAGE, mm::PROT_READ, true) }.unwrap();
        r.backend.map_anew(r.unit, UNIT).unwrap();
        assert!(is_empty(r.unit));
        r.bring(true);
        assert!(is_whole(r.unit));
        r.backend.drop_anew(r.unit, UNIT).unwrap();
        assert!(is_empty(r.unit));
        r.bring(true);
        r.backend.empty(r.unit, false).unwrap();
        assert!(is_empty(r.unit));
    });
}

#[test]
fn in_message_mode_a_frame_goes_where_somebody_left_another_mapping() {
    let Some(r) = rig(true, false) else {
        return;
    };
    // SAFETY: this test's memory, which is absent.
    unsafe { mm::map_anon(r.unit, 5 * PAGE, mm::PROT_NONE, true) }.unwrap();
    r.bring(true);
    assert!(is_whole(r.unit));
}

#[test]
fn parts_are_refused_where_units_move_whole() {
    each(|r| {
        if r.backend.can().has_parts() {
            return;
        }
        assert_eq!(r.backend.part_of(5), None);
        assert!(r.backend.map_for_parts(r.unit, true).is_err());
        r.bring(true);
        assert!(r.backend.split(r.unit).is_err());
        assert!(r.backend.drop_present(r.unit, &Bits::none()).is_err());
        assert!(is_whole(r.unit));
    });
}

#[test]
fn a_part_comes_and_goes_by_itself() {
    each_with_parts(|r| {
        r.fill();
        r.backend.map_for_parts(r.unit, true).unwrap();
        let (part, dirty) = (r.part(100), r.part(300));
        let present = Bits::none();
        for (part, write) in [(part.clone(), false), (dirty.clone(), true)] {
            let from = r.frame + part.start * PAGE;
            r.backend
                .install(r.unit, part.clone(), from, write)
                .unwrap();
            r.backend
                .change_present(&present, || present.put(part.clone(), true));
        }
        for page in 0..PAGES {
            let want = present.get(page).then_some(byte(page));
            assert_eq!(peek(r.unit + page * PAGE), want, "page {page}");
        }
        let at = |part: &Range<usize>| r.unit + part.start * PAGE;
        assert!(poke(at(&dirty), byte(dirty.start)));
        assert!(!poke(at(&part), 0));
        r.backend.freeze(r.unit, &present, 0).unwrap();
        assert!(!poke(at(&dirty), 0));
        // Of two only the one that is written.
        r.backend
            .give_access(r.unit, part.clone(), true, false)
            .unwrap();
        assert!(poke(at(&part), byte(part.start)));
        assert!(!poke(at(&dirty), 0));
        r.backend.drop_present(r.unit, &present).unwrap();
        r.backend.change_present(&present, || present.fill(false));
        assert!((0..PAGES).all(|page| peek(r.unit + page * PAGE).is_none()));
        assert_eq!(r.backend.mappings(), 0);
        // A frame takes the place of what is mapped for parts.
        r.backend.move_in(r.frame, r.unit, false).unwrap();
        assert!(is_whole(r.unit));
    });
}

#[test]
fn a_unit_in_memory_is_split_where_it_stands() {
    each_with_parts(|r| {
        r.bring(false);
        r.backend.split(r.unit).unwrap();
        assert!(is_whole(r.unit));
        let part = r.part(64);
        r.backend
            .give_access(r.unit, part.clone(), true, false)
            .unwrap();
        for page in (0..PAGES).step_by(part.len()) {
            let written = poke(r.unit + page * PAGE, byte(page));
            assert_eq!(written, part.contains(&page), "page {page}");
        }
        let gone = r.backend.give_up(r.unit, part.clone()).unwrap();
        assert_eq!(gone, part);
        assert_eq!(peek(r.unit + part.start * PAGE), None);
        let after = part.end * PAGE;
        assert_eq!(peek(r.unit + after), Some(byte(part.end)));
    });
}

#[test]
fn pages_that_were_never_touched_are_zeros_after_a_split() {
    each_with_parts(|r| {
        // SAFETY: the test's own memory, which it gives up.
        unsafe { mm::advise(r.frame, UNIT, libc::MADV_NOHUGEPAGE) }.unwrap();
        // SAFETY: as above.
        unsafe { mm::advise(r.frame, UNIT, libc::MADV_DONTNEED) }.unwrap();
        assert!(poke(r.frame + 7 * PAGE, 1));
        r.backend.move_in(r.frame, r.unit, false).unwrap();
        r.backend.split(r.unit).unwrap();
        for page in 0..PAGES {
            let want = if page == 7 { 1 } else { 0 };
            assert_eq!(peek(r.unit + page * PAGE), Some(want), "page {page}");
        }
    });
}

#[test]
fn what_is_given_up_and_stays_is_zero() {
    each_with_parts(|r| {
        r.bring(false);
        r.backend.split(r.unit).unwrap();
        // Less than a part of 64 KiB, and one page.
        let gone = r.backend.give_up(r.unit, 33..34).unwrap();
        let want = if gone.is_empty() { Some(0) } else { None };
        assert_eq!(peek(r.unit + 33 * PAGE), want);
        assert_eq!(peek(r.unit + 32 * PAGE), Some(byte(32)));
        assert_eq!(peek(r.unit + 34 * PAGE), Some(byte(34)));
    });
}

#[test]
fn some_pages_are_dropped_and_others_kept_by_one_call() {
    each_with_parts(|r| {
        if !r.backend.can().has_single_pages() {
            return;
        }
        if !r.backend.can_drop_some() {
            println!("skipped: the kernel does not drop several ranges by one call");
            return;
        }
        r.bring(false);
        r.backend.split(r.unit).unwrap();
        let going = Bits::none();
        for page in (0..PAGES).filter(|p| p % 5 < 2) {
            going.put(page..page + 1, true);
        }
        let dropped = r.backend.drop_some(r.unit, &going).unwrap();
        assert_eq!(dropped as u64, going.count());
        for page in 0..PAGES {
            let want = (!going.get(page)).then_some(byte(page));
            assert_eq!(peek(r.unit + page * PAGE), want, "page {page}");
        }
    });
}

#[test]
fn a_part_that_cannot_be_installed_leaves_its_stage_to_others() {
    each_with_parts(|r| {
        r.fill();
        let part = r.part(0);
        for _ in 0..4 {
            let failed = r.backend.install(NOWHERE, part.clone(), r.frame, false);
            assert!(failed.is_err());
        }
        r.backend.map_for_parts(r.unit, true).unwrap();
        if r.backend.can().fills_stages {
            // As many as there are stages, and one more: none is lost.
            for _ in 0..=pieces::STAGES {
                drop(r.backend.take_stage().unwrap());
            }
        }
        r.backend.shed(0);
        r.backend
            .install(r.unit, part.clone(), r.frame, false)
            .unwrap();
        assert_eq!(peek(r.unit), Some(byte(0)));
    });
}

#[test]
fn a_childs_backend_is_of_signal_mode_and_has_descriptors_of_its_own() {
    each(|r| {
        let pagemap = r.backend.pagemap.load(Relaxed);
        r.backend.reset_in_child(false);
        assert_eq!(r.backend.kind(), Kind::SignalRemap);
        assert_eq!(r.backend.messages(), -1);
        assert_ne!(r.backend.pagemap.load(Relaxed), pagemap);
        assert_eq!(r.backend.fds().count(), 1);
        r.backend.map_anew(r.unit, UNIT).unwrap();
        r.bring(true);
        assert!(is_whole(r.unit));
        assert!(
            r.backend
                .is_huge(r.unit)
                .is_none_or(|huge| !huge || is_whole(r.unit))
        );
    });
}
