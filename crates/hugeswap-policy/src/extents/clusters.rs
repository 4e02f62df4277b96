//! Which clusters of an area have all their blocks on the device, and in how many pieces.

/// The cluster that the walk is in the middle of.
#[derive(Default)]
struct Partial {
    cluster: u64,
    /// Bytes of it that have a place on the device, and the pieces that these are in.
    bytes: u64,
    pieces: u32,
}

struct Walk<F> {
    cluster_bytes: u64,
    found: F,
    partial: Partial,
}

impl<F: FnMut(u64, u32)> Walk<F> {
    /// Takes one piece: bytes `from..to` of the area, which follow each other on the device.
    fn piece(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let cluster = at / self.cluster_bytes;
            let end = to.min((cluster + 1).saturating_mul(self.cluster_bytes));
            if self.partial.cluster != cluster {
                self.partial = Partial {
                    cluster,
                    ..Partial::default()
                };
            }
            self.partial.bytes += end - at;
            self.partial.pieces += 1;
            if self.partial.bytes == self.cluster_bytes {
                (self.found)(cluster, self.partial.pieces);
            }
            at = end;
        }
    }
}

/// Calls `found(cluster, pieces)` for each cluster of an area that has a place on the device for
/// all its bytes, in ascending order. `pieces` is 1 where one transfer of the cluster is one
/// stretch of the device.
///
/// A cluster is `cluster_bytes` bytes (not 0) at a multiple of that. `extents` gives the first byte
/// in the area, the first byte on the device, and the length of each extent, in ascending order of
/// the area and without overlap; extents that continue each other are one piece, whatever empty ones
/// lie between. Needs no memory, so it takes files of any number of extents as the file system lists them.
pub fn for_each_cluster(
    extents: impl IntoIterator<Item = (u64, u64, u64)>,
    cluster_bytes: u64,
    found: impl FnMut(u64, u32),
) {
    let mut walk = Walk {
        cluster_bytes,
        found,
        partial: Partial::default(),
    };
    // First and last byte (excluded) of the piece so far, and the byte of the device that would
    // continue it.
    let mut piece = (0, 0, 0);
    for (at, place, len) in extents.into_iter().filter(|e| e.2 > 0) {
        let (end, next) = (at.saturating_add(len), place.saturating_add(len));
        if at != piece.1 || place != piece.2 {
            walk.piece(piece.0, piece.1);
            piece.0 = at;
        }
        (piece.1, piece.2) = (end, next);
    }
    walk.piece(piece.0, piece.1);
}
