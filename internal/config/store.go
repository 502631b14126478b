package config

import (
	"fmt"
	"net/url"
	"os"
	"strings"
)

// checkStore refuses what is no database, and a password in its URL: this
// file is read by many, printed and backed up.
func (c *Config) checkStore() error {
	if c.Store == "" {
		if c.StorePassword != "" {
			return &fault{"store_password_file", "names a password, but store names no database"}
		}
		return nil
	}
	u, err := url.Parse(c.Store)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || strings.Trim(u.Path, "/") == "" {
		return &fault{"store", `want "" for a file in data_dir, or postgres://USER@HOST/DATABASE`}
	}
	if _, has := u.User.Password(); has || u.Query().Has("password") {
		return &fault{"store", "has a password in it: put that into a file and name it as store_password_file"}
	}
	return nil
}

// StoreSecret reads the database's password: "" leaves it to PGPASSWORD, to
// ~/.pgpass, or to a database that asks for none.
func (c *Config) StoreSecret() (string, error) {
	if c.StorePassword == "" {
		return "", nil
	}
	b, err := os.ReadFile(c.StorePassword)
	if err != nil {
		return "", fmt.Errorf("store_password_file: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}
