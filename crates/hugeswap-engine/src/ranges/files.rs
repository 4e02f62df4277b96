//! Ranges of mapped files.
use crate::file::{FileMode, MapFileError};
use crate::ranges::Ranges;
use crate::{PAGE, UNIT};
use hugeswap_policy::unit::FilePlace;
use hugeswap_policy::unit::MAPPING_UNITS;
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
        for (i, unit) in units.enumerate() {
            let place = FilePlace {
                mapping,
                unit: i as u32,
            };
            self.take_file_unit(unit, place, mode);
        }
        Ok(addr)
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
