//! Source packages of Debian's, for suites that no binary package has: fetched with lists of this test's own, derived from the
//! system's, unpacked and built where cargo keeps what tests make. Nothing of it is part of this project.
//!
//! Only for the whole; a part that cannot be had is skipped with the reason.

use crate::util::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a shell script in a directory; the end of what it said if it fails.
fn script(dir: &Path, text: &str) -> Result<(), String> {
    let out = Command::new("sh")
        .args(["-euc", text])
        .current_dir(dir)
        .output()
        .map_err(|e| e.to_string())?;
    if out.status.success() {
        return Ok(());
    }
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let last: Vec<&str> = said.lines().rev().take(3).collect();
    Err(last.into_iter().rev().collect::<Vec<_>>().join("; "))
}

/// The unpacked source of a package, to which `build` was done once.
pub fn source_of(package: &str, build: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("source-{package}"));
    let done = dir.join("done");
    if done.exists() {
        return dir.join("source");
    }
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory for what tests make");
    if let Err(why) = script(&dir, FETCH.replace("PACKAGE", package).as_str()) {
        skip(&format!("the source of {package} is not to be had: {why}"));
    }
    if let Err(why) = script(&dir.join("source"), build) {
        skip(&format!("{package} cannot be built: {why}"));
    }
    std::fs::write(done, "").expect("a file for what tests make");
    dir.join("source")
}

const FETCH: &str = r#"
mkdir -p parts lists/partial cache/archives/partial
: >list
for from in /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$from" ] || sed 's/^Types:.*/Types: deb-src/' "$from" >"parts/${from##*/}"
done
for from in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ ! -e "$from" ] || sed -n 's/^deb /deb-src /p' "$from" >>list
done
cat >apt.conf <<END
Dir::Etc::sourcelist "$PWD/list";
Dir::Etc::sourceparts "$PWD/parts";
Dir::State::lists "$PWD/lists";
Dir::Cache "$PWD/cache";
APT::Sandbox::User "";
END
export APT_CONFIG=$PWD/apt.conf
apt-get update
apt-get source --download-only PACKAGE
dpkg-source --no-check -x PACKAGE_*.dsc source
"#;
