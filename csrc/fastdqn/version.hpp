#pragma once

namespace fastdqn {

/// The version of the core, e.g. "0.1.0"; equal to the Python package's.
const char* version() noexcept;

}  // namespace fastdqn
