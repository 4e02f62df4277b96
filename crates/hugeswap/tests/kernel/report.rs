//! Prints the cause of a SIGBUS before it ends a test, because the exit status does not show the
//! cause.

use std::fmt::Write;

/// Installs the handler; tests that have their own replace it.
pub fn install() {
    // SAFETY: a zeroed sigaction is valid, and the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

struct Line([u8; 200], usize);

impl Write for Line {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let n = s.len().min(self.0.len() - self.1);
        self.0[self.1..self.1 + n].copy_from_slice(&s.as_bytes()[..n]);
        self.1 += n;
        Ok(())
    }
}

extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo and ucontext.
    let (code, addr, ip) = unsafe {
        let c = &*(context as *const libc::ucontext_t);
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            c.uc_mcontext.gregs[libc::REG_RIP as usize],
        )
    };
    let mut line = Line([0; 200], 0);
    // SAFETY: gettid takes nothing.
    let tid = unsafe { libc::gettid() };
    let _ = writeln!(
        line,
        "SIGBUS in thread {tid}: code {code}, address {addr:#x}, at {ip:#x}"
    );
    // SAFETY: writes initialised bytes; then the signal once more, with its default action, as this
    // handler returns.
    unsafe {
        libc::write(2, line.0.as_ptr().cast(), line.1);
        libc::raise(signal);
    }
}
