//! Makes the interpreter's features (free-threaded or not) known to `cfg`.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
