package rpc

// CountUnsent returns a function that tells how many bytes of answers are held by the
// servers that are registered with the Config from now on.
func (c *Config) CountUnsent() func() int64 {
	c.unsent = newUnsent(c.Settings.UnsentBytesMax)
	return c.unsent.bytes.Load
}
