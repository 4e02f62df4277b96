//! The findings about a file, for people.

use super::inspect::{Findings, Listed};
use crate::text::{bytes, count};
use std::fmt::Write;

/// Characters of the longest bar.
const WIDTH: f64 = 40.0;

/// The report, and the lists that were asked for.
pub fn text(f: &Findings) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, f);
    out
}

fn percent(part: u64, of: u64) -> String {
    format!("{:.1}%", part as f64 * 100.0 / of.max(1) as f64)
}

fn write(out: &mut String, f: &Findings) -> std::fmt::Result {
    writeln!(out, "{}: {} on {}\n", f.file, bytes(f.bytes), f.file_system)?;
    writeln!(
        out,
        "extents    {}, in {} on the device",
        count(f.extents as u64),
        pieces(f.pieces as u64)
    )?;
    let most = f.histogram.iter().map(|b| b.bytes).max().unwrap_or(0);
    // The size of the file, or its extents where the last block reaches beyond the end.
    let all = f
        .histogram
        .iter()
        .map(|b| b.bytes)
        .sum::<u64>()
        .max(f.bytes);
    for b in &f.histogram {
        let bar = "#".repeat((b.bytes as f64 / most as f64 * WIDTH).ceil() as usize);
        let from = format!("{} or more", bytes(b.from_bytes));
        let line = format!(
            "  {from:>17}  {:>9}  {:>6}  {bar}",
            pieces(b.pieces),
            percent(b.bytes, all)
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    let c = &f.clusters;
    write!(
        out,
        "clusters   {} of {} are in one piece",
        count(c.whole as u64),
        count(c.total as u64)
    )?;
    if c.split > 0 {
        write!(out, ", {} in up to {}", count(c.split as u64), c.pieces_max)?;
    }
    if c.incomplete > 0 {
        write!(out, ", {} with gaps", count(c.incomplete as u64))?;
    }
    writeln!(out)?;
    let share = |n| format!("{} ({})", bytes(n), percent(n, f.bytes));
    writeln!(out, "unwritten  {}", share(f.unwritten_bytes))?;
    writeln!(out, "holes      {}", share(f.hole_bytes))?;
    if f.shared_bytes > 0 {
        writeln!(out, "shared     {}", share(f.shared_bytes))?;
    }
    if f.unplaced_bytes > 0 {
        writeln!(out, "no place   {}", share(f.unplaced_bytes))?;
    }
    let map = bytes(f.map_bytes as u64);
    writeln!(out, "memory     {map} would hold the map of them")?;
    writeln!(out, "\nWhat that means for swapping to it")?;
    for line in meaning(f) {
        writeln!(out, "  {line}")?;
    }
    if let Some(list) = &f.extent_list {
        extents(out, list)?;
    }
    if let Some(list) = &f.cluster_list {
        writeln!(out, "\n{:>16}  {:>6}", "cluster at", "pieces")?;
        for c in list {
            writeln!(out, "{:>16}  {:>6}", c.offset, c.pieces)?;
        }
    }
    Ok(())
}

fn pieces(n: u64) -> String {
    let name = if n == 1 { "piece" } else { "pieces" };
    format!("{} {name}", count(n))
}

fn extents(out: &mut String, list: &[Listed]) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:>16}  {:>14}  {:>16}",
        "extent at", "bytes", "device offset"
    )?;
    for e in list {
        let place = e.device_offset.map_or("-".into(), |o| o.to_string());
        let notes = [(e.unwritten, "  unwritten"), (e.shared, "  shared")];
        let notes: String = notes.iter().filter(|n| n.0).map(|n| n.1).collect();
        writeln!(out, "{:>16}  {:>14}  {place:>16}{notes}", e.offset, e.bytes)?;
    }
    Ok(())
}

/// The conclusions, the most important first.
fn meaning(f: &Findings) -> Vec<String> {
    let mut say = Vec::new();
    let c = &f.clusters;
    if c.total == 0 {
        say.push("It is smaller than one huge page (2 MiB): nothing can be swapped to it.".into());
    } else if c.whole + c.split > 0 {
        let mean = c.requests_mean;
        say.push(format!(
            "One 2 MiB read is {mean:.2} device requests on average."
        ));
        let limit = f.device_request_bytes.filter(|&l| l < 2 << 20);
        let best = limit.map_or(1, |l| (2u64 << 20).div_ceil(l));
        if let Some(limit) = limit {
            let limit = bytes(limit);
            say.push(format!(
                "The device takes at most {limit} in one request, so {best} would be the least."
            ));
        }
        say.push(if mean <= best as f64 * 1.05 {
            "That is as good as a file in one piece.".into()
        } else {
            format!(
                "Of a file in one piece it would be {best}. Each more is a seek on a disk that turns, and one more command on others."
            )
        });
    }
    if f.hole_bytes > 0 {
        say.push("The first write to a hole has to find space, and fails if there is none. swapon refuses files with holes.".into());
    }
    if f.unwritten_bytes > 0 {
        say.push("The first write to an unwritten extent is slower: the file system has to note that it was written.".into());
    }
    if f.shared_bytes > 0 {
        say.push("What is shared with another file goes elsewhere when it is written: the pieces will change.".into());
    }
    if f.unplaced_bytes > 0 {
        say.push("What has no place is compressed, packed, encrypted or not yet allocated: where it will go is not known.".into());
    }
    say
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap::inspect::{Bar, ClusterFindings};

    fn found() -> Findings {
        Findings {
            file: "f".into(),
            bytes: 8 << 20,
            file_system: "ext4".into(),
            extents: 3,
            pieces: 3,
            histogram: vec![
                Bar {
                    from_bytes: 1 << 20,
                    below_bytes: 2 << 20,
                    pieces: 2,
                    bytes: 2 << 20,
                },
                Bar {
                    from_bytes: 2 << 20,
                    below_bytes: 4 << 20,
                    pieces: 0,
                    bytes: 0,
                },
                Bar {
                    from_bytes: 4 << 20,
                    below_bytes: 8 << 20,
                    pieces: 1,
                    bytes: 4 << 20,
                },
            ],
            clusters: ClusterFindings {
                total: 4,
                whole: 2,
                split: 1,
                incomplete: 1,
                pieces_mean: 4.0 / 3.0,
                pieces_max: 2,
                requests_mean: 4.0 / 3.0,
            },
            hole_bytes: 2 << 20,
            unwritten_bytes: 1 << 20,
            shared_bytes: 0,
            unplaced_bytes: 0,
            device_request_bytes: Some(1280 << 10),
            map_bytes: 200,
            extent_list: None,
            cluster_list: None,
        }
    }

    #[test]
    fn the_report_says_what_it_means() {
        let t = text(&found());
        for line in [
            "extents    3, in 3 pieces on the device",
            "   1.00 MiB or more   2 pieces   25.0%  ####################\n",
            "   2.00 MiB or more   0 pieces    0.0%\n",
            "   4.00 MiB or more    1 piece   50.0%  ########################################\n",
            "clusters   2 of 4 are in one piece, 1 in up to 2, 1 with gaps",
            "unwritten  1.00 MiB (12.5%)",
            "holes      2.00 MiB (25.0%)",
            "One 2 MiB read is 1.33 device requests on average.",
            "at most 1.25 MiB in one request, so 2 would be the least",
            "swapon refuses",
            "slower",
        ] {
            assert!(t.contains(line), "{line:?} in\n{t}");
        }
        assert!(!t.contains("shared") && !t.contains("no place"));
    }

    #[test]
    fn a_file_in_pieces_is_told_what_it_lacks() {
        let mut f = found();
        f.device_request_bytes = None;
        f.clusters.requests_mean = 3.0;
        assert!(text(&f).contains("Of a file in one piece it would be 1."));
        f.clusters.requests_mean = 1.0;
        assert!(text(&f).contains("as good as a file in one piece"));
        f.clusters = ClusterFindings::default();
        assert!(text(&f).contains("smaller than one huge page"));
    }
}
