#include "fastdqn/version.hpp"

namespace fastdqn {

const char* version() noexcept { return "0.1.0"; }

}  // namespace fastdqn
