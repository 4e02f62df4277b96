//! Ranges of mapped files.
use crate::file::{FileMode, MapFileError};
use crate::ranges::Ranges;
use crate::{PAGE, UNIT};
use hugeswap_policy::unit::{FilePlace, Kind, MAPPING_UNITS};
use hugeswap_sys::Errno;
use hugeswap_sys::signal::Blocked;
use std::sync::atomic::Ordering::Relaxed;

impl Ranges {
    /// Maps `[offset, offset+len)` of the file that `fd` is, at an address of ours; `offset` is
    /// whole pages. The descriptor is the caller's and not needed afterwards. Readable, and
    /// writable if `mode` says so, as far as `fd` is.
    pub fn map_file(
        &self,
        fd: i32,
        offset: u64,
        len: usize,
        mode: FileMode,
    ) -> std::result::Result<usize, MapFileError> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let total = len
            .checked_next_multiple_of(UNIT)
            .ok_or(MapFileError::NoAddresses)?;
        if len == 0 || !offset.is_multiple_of(PAGE as u64) {
            return Err(MapFileError::Outside);
        }
        if (total / UNIT) as u64 > MAPPING_UNITS {
            return Err(MapFileError::NoAddresses);
        }
        let bytes = (offset, len);
        let writes = mode == FileMode::WriteBack;
        let mapping = self.open_mapping(fd, bytes, writes, (total / UNIT) as u32)?;
        let Some(addr) = self.space.lock().alloc(total, UNIT) else {
            self.files.abandon(mapping);
            self.close_unused_mappings();
            return Err(MapFileError::NoAddresses);
        };
        let units = self.table.units_of(addr, total);
        self.high_unit.fetch_max(units.end, Relaxed);
        if let Err(e) = self.free_left_units(units.clone()) {
            self.space.lock().free(addr, total);
            self.files.abandon(mapping);
            self.close_unused_mappings();
            return Err(MapFileError::System(e));
        }
        for (i, unit) in units.enumerate() {
            let place = FilePlace {
                mapping,
                unit: i as u32,
            };
            self.take_file_unit(unit, place, mode);
        }
        Ok(addr)
    }

    /// Frees those of `units`, which are in no range, that could not be freed when their range was
    /// unmapped, because the kernel did not take their memory. ENOMEM: it does not yet.
    fn free_left_units(&self, units: std::ops::Range<u32>) -> Result<(), Errno> {
        for unit in units {
            let is_free = || self.table.load(unit).kind() == Kind::Free;
            if is_free() {
                continue;
            }
            self.drop_units(unit, unit + 1, true)?;
            if !is_free() {
                return Err(Errno::ENOMEM);
            }
        }
        Ok(())
    }

    /// Unmaps a mapping of a file, after writing what is dirty of it.
    pub fn unmap_file(&self, addr: usize, len: usize) {
        {
            let _blocked = Blocked::all();
            self.settle_units(addr, len, false);
        }
        self.unmap(addr, len.next_multiple_of(UNIT));
    }
}
