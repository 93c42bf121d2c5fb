//! Exposes the interpreter's features, such as free threading, as `cfg` flags.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
