# What a release consists of.  Products go to build/packages; the same commit gives the same bytes.

PACKAGES_DIR := build/packages
DIST         := $(PACKAGES_DIR)/vptq-$(VERSION).tar.gz
ifeq ($(origin SOURCE_DATE_EPOCH),undefined)
SOURCE_DATE_EPOCH := $(shell scripts/commit.sh --date)
endif
export SOURCE_DATE_EPOCH

.PHONY: dist
dist:
	$(Q)packaging/dist.sh $(VERSION) $(DIST)
	@echo $(DIST)
