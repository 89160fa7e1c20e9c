// Reads and writes records with segmentio/kafka-go. See other_clients.py for its arguments.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	bootstrap, topic, mode, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	switch mode {
	case "feed":
		feed(bootstrap, topic, milliseconds(name))
		return
	case "follow":
		follow(bootstrap, topic, name, milliseconds(os.Args[5]))
		return
	}
	count, err := strconv.Atoi(os.Args[5])
	if err != nil {
		log.Fatal(err)
	}
	config := kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, MaxWait: 500 * time.Millisecond}
	if mode == "group" {
		config.GroupID, config.StartOffset = name, kafka.FirstOffset
	}
	reader := kafka.NewReader(config)
	background := context.Background()
	if mode == "since" {
		since, err := strconv.ParseInt(name, 10, 64)
		if err != nil {
			log.Fatal(err)
		}
		if err := reader.SetOffsetAt(background, time.UnixMilli(since)); err != nil {
			log.Fatal(err)
		}
	}
	for ; count > 0; count-- {
		message, err := reader.FetchMessage(background)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(message.Value))
		if mode == "group" {
			if err := reader.CommitMessages(background, message); err != nil {
				log.Fatal(err)
			}
		}
	}
	if err := reader.Close(); err != nil {
		log.Fatal(err)
	}
}

func milliseconds(text string) time.Duration {
	number, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return time.Duration(number) * time.Millisecond
}
