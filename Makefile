# Thin: cmake does the building, integration/run_tests the testing.
#
#   make            what a user needs, in build/
#   make help       everything else

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

# A compiler cache halves the second build; cmake takes it from the environment.
ifneq ($(shell command -v ccache 2>/dev/null),)
export CMAKE_C_COMPILER_LAUNCHER ?= ccache
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
# Another build of the same source takes these objects, in another folder too: they differ in the folder that
# debuggers are told.
export CCACHE_NOHASHDIR ?= 1
export CCACHE_BASEDIR ?= $(CURDIR)
# Without it ccache keeps nothing of a build that precompiles headers.
export CCACHE_SLOPPINESS ?= pch_defines,time_macros,locale
endif

# Everything but the tests.
PRODUCT = policy/all rsocket-core/all preload/all cli/all packaging/all integration/bench/net_load/all

.PHONY: build deps demo bench check test stages install package image site clean help
.DEFAULT_GOAL := build

build:
	@echo "== build: build/lib/libringroad.so, build/lib/libringroad-verbs.so, build/bin/ringroad"
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --parallel $(JOBS) --target $(PRODUCT)

deps:
	@integration/deps/install

# A second make in these two: `deps` may have installed the compiler cache just now.
demo: deps
	@$(MAKE) --no-print-directory build
	@/usr/bin/python3 -m integration.bench.run_all --preset demo $(if $(filter-out 0 no,$(QUICK)),--quick)

bench: deps
	@$(MAKE) --no-print-directory build
	@/usr/bin/python3 -m integration.bench.run_all $(if $(filter-out 0 no,$(QUICK)),--quick)

# Without the labels of what takes long: the model, what runs under valgrind, the search by seeds.
check:
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --parallel $(JOBS)
	@ctest --test-dir build --parallel $(JOBS) --label-exclude '^(model|cost|long)$$' --no-tests=error \
	  --output-on-failure

test: deps
	@$(MAKE) --no-print-directory stages

stages:
	@integration/run_tests --jobs $(JOBS) $(addprefix --only ,$(ONLY))

# Units and examples name the folders that they are installed in.
install:
	@cmake --preset release --log-level=WARNING -DCMAKE_INSTALL_PREFIX="$(PREFIX)"
	@$(MAKE) --no-print-directory build
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)"

package: build
	@echo "== package: build/package/*.deb, *.rpm, *.tar.gz"
	@packaging/distribution/make_packages build build/package

image: build
	@echo "== image: build/image/*.oci, *.oci.tar"
	@packaging/image/make_image build build/image

site:
	@echo "== site: build/site/index.html"
	@packaging/site/make_site build/site

clean:
	rm -rf build

help:
	@echo 'make            build Ringroad: build/lib/libringroad.so, libringroad-verbs.so, build/bin/ringroad'
	@echo 'make deps       install the Debian packages that are missing (integration/deps/packages.txt)'
	@echo 'make demo       TCP against Ringroad under MariaDB and sysbench; QUICK=1 for a short one'
	@echo 'make bench      TCP, Ringroad, rsockets and SMC-R, row by row; goes on where it was'
	@echo '                ended; an hour, QUICK=1 for some minutes'
	@echo 'make check      the unit and differential tests of the release build that take under five minutes'
	@echo 'make test       every test; ONLY="unit asan" for some stages,'
	@echo '                integration/run_tests --list for their names'
	@echo 'make install    into $(DESTDIR)$(PREFIX); DESTDIR= and PREFIX= change that'
	@echo 'make package    build/package: Debian packages, RPM packages (if rpmbuild is there), an archive'
	@echo 'make image      build/image: an OCI image that copies the library and the command into a volume'
	@echo 'make site       build/site: README and docs/ as pages with a search, by mkdocs'
	@echo 'make clean      remove build/'
	@echo 'JOBS=N          processes at once, $(JOBS) here'
