#include "check.hpp"
#include "fastdqn/version.hpp"

int main() { CHECK(std::string(fastdqn::version()).find('.') != std::string::npos); }
